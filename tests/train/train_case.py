# Trains LeNet on Fashion-MNIST with the built program and compares checkpoints byte by byte: they hold
# no time, path or number of devices, so equal training means equal files.
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("CONVNET", os.path.join(SOURCE, "build/release/convnet"))
LENET = os.path.join(SOURCE, "model-defs/lenet-fashion.yaml")
DATA_SET = "/usr/share/datasets/fashion-mnist"


class Case(unittest.TestCase):
    def setUp(self):
        if not os.path.isdir(DATA_SET):
            self.skipTest("needs Debian's package dataset-fashion-mnist")
        self.folder = tempfile.mkdtemp(prefix="convnet-train-")
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder])

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, out, steps, devices=1, threads=1, isa=None, args=()):
        line = [PROGRAM, "train", LENET, "--devices", f"cpu:{devices}", "--threads", str(threads),
                "--steps", str(steps), "--out", self.path(out), *NO_TESTS, *args]
        return line + (["--isa", isa] if isa else [])

    def train(self, out, steps, **kwargs):
        line = self.command(out, steps, **kwargs)
        result = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=550)
        self.assertEqual(result.returncode, 0, f"{line}: {result.stderr.decode()}")
        return self.checkpoint(out, steps)

    def checkpoint(self, out, steps):
        with open(self.path(f"{out}/checkpoints/step-{steps:08}.safetensors"), "rb") as f:
            return f.read()


# The 10,000 test images are not run: they do not change the weights.
NO_TESTS = ["--set", "train.test={epochs: 1000}"]


def instruction_sets():
    """Those that this machine executes."""
    listed = subprocess.run([PROGRAM, "devices", "--json"], capture_output=True, check=True).stdout
    import json
    return json.loads(listed)["instruction_sets"]


def main():
    unittest.main(verbosity=1)
