# If this fails, a kill at some moment has cost more than the work since the last checkpoint. Starts a
# training run that saves every few steps, kills it at a random moment, looks at what is there, resumes;
# again and again. At the end the run must be, byte for byte, the run that was never killed.
#
#   python3 tests/train/killloop.py --rounds 200
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("CONVNET", os.path.join(SOURCE, "build/release/convnet"))

# Large enough (2 MB with momentum) that many kills fall into a save.
MODEL = """format: 1
name: killed
batch: 32
input: {data: [1, 16, 16], label: {classes: 10}}
layers:
  - {name: conv1, type: conv, input: data, filters: 8, kernel: 3, act: relu}
  - {name: fc1, type: fc, outputs: 150, act: relu}
  - {name: drop1, type: dropout}
  - {name: fc2, type: fc, outputs: 10}
  - {name: loss, type: softmax_loss, input: [fc2, label]}
train:
  steps: 1000000
  rate: {base: 0.01}
  checkpoint: {steps: 3}
  test: {epochs: 100000}
  keep: 2
data:
  train: {synthetic: {shape: [1, 16, 16], classes: 10, examples: 1000}}
"""


def steps_saved(run):
    folder = os.path.join(run, "checkpoints")
    if not os.path.isdir(folder):
        return []
    found = [re.fullmatch(r"step-(\d+)\.safetensors", name) for name in os.listdir(folder)]
    return sorted(int(match.group(1)) for match in found if match)


def check(condition, message):
    if not condition:
        sys.exit(f"killloop: {message}")


def quiet(line, **kwargs):
    return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, **kwargs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    choose = random.Random(options.seed)
    deadline = time.monotonic() + options.seconds

    with tempfile.TemporaryDirectory(prefix="convnet-kill-") as folder:
        model = os.path.join(folder, "model.yaml")
        with open(model, "w") as file:
            file.write(MODEL)
        run = os.path.join(folder, "run")
        kills, newest, rounds = 0, 0, 0
        while rounds < options.rounds and time.monotonic() < deadline:
            rounds += 1
            devices = f"cpu:{choose.choice([1, 2])}"
            line = [PROGRAM, "train", "--devices", devices, "--threads", "1"]
            # Before the first checkpoint there is nothing to resume.
            line += ["--resume", run] if newest else [model, "--out", run]
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            time.sleep(choose.uniform(0.02, 0.4))
            process.send_signal(signal.SIGKILL)
            error = process.communicate()[1]
            check(process.returncode == -signal.SIGKILL,
                  f"round {rounds}: ended by itself with {process.returncode}: {error}")
            kills += 1
            saved = steps_saved(run)
            if not saved:
                check(newest == 0, f"round {rounds}: the checkpoint of step {newest} is lost")
                continue
            check(saved[-1] >= newest, f"round {rounds}: step {newest} is lost, newest is {saved[-1]}")
            newest = saved[-1]
            for step in saved:
                path = os.path.join(run, f"checkpoints/step-{step:08}.safetensors")
                result = quiet([PROGRAM, "checkpoint", path])
                check(result.returncode == 0, f"round {rounds}: damaged: {result.stderr}")
        check(newest > 0, "no round was long enough to save a checkpoint")

        last = newest + 5
        result = quiet([PROGRAM, "train", "--resume", run, "--steps", str(last)])
        check(result.returncode == 0, f"resuming failed: {result.stderr}")
        check(not [n for n in os.listdir(os.path.join(run, "checkpoints")) if "tmp" in n],
              "temporary files are left")
        whole = os.path.join(folder, "whole")
        result = quiet([PROGRAM, "train", model, "--out", whole, "--steps", str(last)])
        check(result.returncode == 0, f"the run in one go failed: {result.stderr}")
        name = f"checkpoints/step-{last:08}.safetensors"
        check(open(os.path.join(run, name), "rb").read() == open(os.path.join(whole, name), "rb").read(),
              "the killed run's weights differ from those of the run in one go")
        print(f"{kills} kills, {last} steps: no checkpoint lost or damaged, the same weights")


if __name__ == "__main__":
    main()
