# A small AlexNet (all its layers, dropout on), convolutions in data parallel, fully-connected layers split
# by outputs, on any number of devices and processes. Its batch is four blocks of examples, so of 8 devices
# 4 have none. With CONVNET_WIDTH=4096 its fully-connected layers are as wide as AlexNet's.
import json
import shutil

from train_case import *

MODEL = os.path.join(SOURCE, "model-defs/alexnet-owt-4.yaml")
WIDTH = int(os.environ.get("CONVNET_WIDTH", "512"))
SMALL = ["batch=64", "input={data: [3, 67, 67], label: {classes: 10}}",
         f"layers.fc6.outputs={WIDTH}", f"layers.fc7.outputs={WIDTH}", "layers.fc8.outputs=10",
         "layers.loss.report=[top1]", "train.test={epochs: 1000}", "train.rate={base: 0.01}",
         "data.train.synthetic={shape: [3, 67, 67], classes: 10, examples: 6400}",
         "data.test.synthetic={shape: [3, 67, 67], classes: 10, examples: 128}"]
MPIRUN = shutil.which("mpirun")


def tensors(checkpoint):
    """The bytes of each tensor, without the model text, which says how the layers are split."""
    end = 8 + int.from_bytes(checkpoint[:8], "little")
    head = json.loads(checkpoint[8:end])
    return {name: checkpoint[end + entry["data_offsets"][0]:end + entry["data_offsets"][1]]
            for name, entry in head.items() if name != "__metadata__"}


class SmallAlexNet(Case):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="convnet-train-")
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder])

    def small_line(self, out, devices, scheme, steps, sets=(), ranks=1, args=(), model=MODEL):
        line = [PROGRAM, "train", model, "--devices", str(devices), "--threads", "1",
                "--steps", str(steps), "--out", self.path(out), *args]
        schemes = [f"defaults.fc.exchange={scheme}"] if scheme else []
        for setting in [*(SMALL if model == MODEL else []), *schemes, *sets]:
            line += ["--set", setting]
        if ranks > 1:
            # One host: mpirun must not ask for ssh, which a small machine lacks.
            line = [MPIRUN, "--mca", "plm", "isolated", "--allow-run-as-root", "--oversubscribe",
                    "-n", str(ranks), *line]
        return line

    def run_small(self, out, devices, scheme, steps, **kwargs):
        """All tensors of the checkpoint after the last step, by name."""
        line = self.small_line(out, devices, scheme, steps, **kwargs)
        result = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=550)
        self.assertEqual(result.returncode, 0, f"{line}: {result.stderr.decode()}")
        self.assertNotIn("falls back", result.stderr.decode())
        return tensors(self.checkpoint(out, steps))
