# If this fails, several processes of MPI learn something else than one, or a process that dies or stalls
# hangs the others or costs a checkpoint.
import glob
import signal
import time

from small_alexnet import *

STEPS = 20
LOST = 10  # exit code: a peer or device lost
SKIPPED = 77  # exit code by which CTest knows


def alive(process):
    """Whether a process is there, and not only waits to be noted as dead."""
    try:
        with open(f"/proc/{process}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Processes(SmallAlexNet):
    def test_same_weights(self):
        wanted = self.run_small("one", 4, "whole", STEPS)
        for ranks in (2, 4):
            for scheme in ("whole", "owner", "stripe"):
                with self.subTest(scheme=scheme, ranks=ranks):
                    weights = self.run_small(f"{scheme}{ranks}", 4, scheme, STEPS, ranks=ranks)
                    self.assertTrue(weights == wanted, "weights differ")

    def test_stripes_of_two_passes(self):
        sets = ["batch=128"]  # two blocks of examples for each device
        wanted = self.run_small("one", 4, "stripe", 5, sets=sets)
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                weights = self.run_small(f"stripe{ranks}", 4, "stripe", 5, sets=sets, ranks=ranks)
                self.assertTrue(weights == wanted, "weights differ")

    def test_encoded_values(self):
        sets = ["defaults.conv.wire=u8tree", "defaults.fc.wire=bf16"]
        wanted = self.run_small("one", 4, "whole", 5, sets=sets)
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                weights = self.run_small(f"encoded{ranks}", 4, "whole", 5, sets=sets, ranks=ranks)
                self.assertTrue(weights == wanted, "weights differ")

    def test_more_devices_than_ranks_divide(self):
        sets = ["batch=128"]  # a block of examples for each device
        wanted = self.run_small("one", 8, "whole", 5, sets=sets)
        self.assertTrue(self.run_small("three", 8, "whole", 5, sets=sets, ranks=3) == wanted, "weights differ")

    def send(self, signal_number):
        """Sends a signal to rank 1 in the middle of a run; returns what mpirun says, and the ranks' errors."""
        line = self.small_line("run", 4, "whole", 100000, sets=["train.checkpoint={steps: 5}"], ranks=2,
                               args=["--timeout", "5"])
        run = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        while not glob.glob(self.path("run/checkpoints/*.safetensors")):
            self.assertIsNone(run.poll(), "ended too early")
            time.sleep(0.1)
        children = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(children), 2)
        os.kill(int(children[1]), signal_number)
        started = time.time()
        errors = run.communicate(timeout=120)[1]
        print(f"ended {time.time() - started:.1f} s after signal {signal_number}")
        deadline = time.time() + 20
        while any(map(alive, children)):
            self.assertLess(time.time(), deadline, "a rank is left")
            time.sleep(0.1)
        return run.returncode, errors

    def assert_resumes(self):
        """The last checkpoint is whole: one process goes on from it."""
        result = subprocess.run([PROGRAM, "train", "--resume", self.path("run"), "--steps", "1"],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=550)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_rank_that_stalls(self):
        code, errors = self.send(signal.SIGSTOP)
        self.assertEqual(code, LOST, errors)
        self.assertRegex(errors, r"rank 0 on \S+ has waited 5 s for rank 1 on \S+: \w+ of '[\w.]+'( on edge \S+)? for '\w+' "
                                 r"\(.*alexnet-owt-4.yaml:\d+\)")
        self.assert_resumes()

    def test_a_rank_that_dies(self):
        code, errors = self.send(signal.SIGKILL)
        self.assertNotEqual(code, 0)
        self.assertIn("rank 1", errors)
        self.assert_resumes()


def left_out():
    """A build without MPI has nothing to test here; one with it needs mpirun."""
    devices = subprocess.run([PROGRAM, "devices", "--json"], capture_output=True, check=True).stdout
    if "mpi" not in json.loads(devices)["left_out"]:
        if MPIRUN is None:
            sys.exit("FAILED: this build has MPI, but there is no mpirun (Debian's package openmpi-bin)")
        return False
    reason = "processes: skipped, this build has no MPI (Debian's package libopenmpi-dev)"
    print(reason)
    if "CONVNET_TEST_REPORT" in os.environ:
        with open(os.environ["CONVNET_TEST_REPORT"], "a") as report:
            report.write(reason + "\n")
    return True


if __name__ == "__main__":
    if left_out():
        sys.exit(SKIPPED)
    main()
