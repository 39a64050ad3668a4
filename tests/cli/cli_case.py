# Runs the built program as a user does. Every test of a mistake goes through `refused`, which holds what
# is true of all of them: the exit code, what is wrong on stderr in words, nothing on stdout, no signal.
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("CONVNET", os.path.join(SOURCE, "build/release/convnet"))
LENET = "model-defs/lenet-fashion.yaml"

OK, FAILED, USAGE, MODEL, DATA, CHECKPOINT, IO, BUSY, LIMIT, NOT_FINITE, PEER = range(11)

# A model that trains in a blink.
TINY = """format: 1
name: tiny
batch: 32
input: {data: [1, 8, 8], label: {classes: 3}}
layers:
  - {name: conv1, type: conv, input: data, filters: 4, kernel: 3, act: relu}
  - {name: fc1, type: fc, outputs: 3}
  - {name: loss, type: softmax_loss, input: [fc1, label]}
train: {steps: 4, rate: {base: 0.01}}
data:
  train: {synthetic: {shape: [1, 8, 8], classes: 3, examples: 128}}
  test: {synthetic: {shape: [1, 8, 8], classes: 3, examples: 40}}
"""


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="convnet-test-")
        self.addCleanup(subprocess.run, ["rm", "-rf", self.folder])

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        data = text if isinstance(text, bytes) else text.encode()
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def run_program(self, *args, env=None, cwd=SOURCE, timeout=120, **kwargs):
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        result = subprocess.run([PROGRAM, *args], cwd=cwd, timeout=timeout, env=env, **kwargs)
        for stream in ("stdout", "stderr"):
            data = getattr(result, stream)
            if data is not None:
                setattr(result, stream, data.decode("utf-8"))
        return result

    def accepted(self, *args, **kwargs):
        result = self.run_program(*args, **kwargs)
        self.assertEqual(result.returncode, OK, f"{args}: {result.stderr}")
        return result

    def refused(self, code, words, *args, **kwargs):
        result = self.run_program(*args, timeout=20, **kwargs)
        about = f"{args}: {result.stderr}"
        self.assertEqual(result.returncode, code, about)
        lines = result.stderr.splitlines()
        errors = [line for line in lines if line.startswith("convnet: error: ")]
        mistakes = [line for line in lines if re.match(r"\S+:\d+:\d+: error: ", line)]
        # One line, or one for each mistake in the model file, with its place.
        self.assertTrue(len(errors) == 1 if not mistakes else not errors, about)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, result.stderr, about)
        self.assertNotRegex(result.stderr, r"[\x00-\x09\x0b-\x1f\x7f]", about)
        self.assertEqual(result.stdout, "", about)
        return result


def main():
    unittest.main(verbosity=1)
