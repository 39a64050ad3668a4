# If this fails, a run that is stopped and resumed, perhaps on another number of devices, is not the run
# that went through.
import random
import re
import signal
import time

from train_case import *

STEPS = int(os.environ.get("CONVNET_STEPS", "200"))
EVERY = ["--set", "train.checkpoint={steps: 10}", "--set", "train.keep=3"]


class Resume(Case):
    def finish(self, out, devices, timeout=550):
        line = [PROGRAM, "train", "--resume", self.path(out), "--devices", f"cpu:{devices}"]
        result = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
        self.assertEqual(result.returncode, 0, result.stderr.decode())

    def start(self, out, devices):
        return subprocess.Popen(self.command(out, STEPS, devices=devices, args=EVERY),
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)

    def steps_saved(self, out):
        folder = self.path(out + "/checkpoints")
        if not os.path.isdir(folder):
            return []
        found = [re.fullmatch(r"step-(\d+)\.safetensors", n) for n in os.listdir(folder)]
        return sorted(int(m.group(1)) for m in found if m)

    def wait_for_checkpoint(self, out, process):
        while process.poll() is None and not self.steps_saved(out):
            time.sleep(0.01)

    def test_stopped_and_resumed(self):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        choose = random.Random(seed)
        wanted = self.train("whole", STEPS, args=EVERY)
        for name, sent, before, after in (("term", signal.SIGTERM, 2, 1), ("int", signal.SIGINT, 1, 4),
                                          ("kill", signal.SIGKILL, 1, 2), ("kill2", signal.SIGKILL, 4, 8)):
            with self.subTest(name):
                process = self.start(name, before)
                if sent == signal.SIGKILL:
                    self.wait_for_checkpoint(name, process)
                else:
                    while process.poll() is None and not os.path.exists(self.path(name + "/log.jsonl")):
                        time.sleep(0.01)
                time.sleep(choose.uniform(0, 1))
                process.send_signal(sent)
                error = process.communicate(timeout=60)[1].decode()
                # It may have been quicker than the signal.
                self.assertIn(process.returncode, (0, -9, 128 + sent), error)
                saved = self.steps_saved(name)
                if sent != signal.SIGKILL and process.returncode != 0:
                    self.assertTrue(saved, "a signal that can be caught ends with a checkpoint")
                self.finish(name, after)
                self.assertTrue(self.checkpoint(name, STEPS) == wanted, "weights differ")

    def test_finished_run_is_not_touched(self):
        wanted = self.train("done", 5)
        line = [PROGRAM, "train", "--resume", self.path("done")]
        self.assertEqual(subprocess.run(line, capture_output=True).returncode, 0)
        self.assertTrue(self.checkpoint("done", 5) == wanted)
        again = subprocess.run(self.command("done", 5), capture_output=True)
        self.assertEqual(again.returncode, 2, again.stderr)

    def test_longer(self):
        wanted = self.train("whole", 20)
        self.train("first", 10)
        line = [PROGRAM, "train", "--resume", self.path("first"), "--steps", "20"]
        self.assertEqual(subprocess.run(line, capture_output=True).returncode, 0)


if __name__ == "__main__":
    main()
