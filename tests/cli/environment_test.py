# If this fails, the program's results or exit code depend on the surroundings it is started in.
import os
import shutil
import signal

from cli_case import *


class Environment(Case):
    def train(self, out, *args, **kwargs):
        model = self.write("tiny.yaml", TINY)
        return self.accepted("train", model, "--devices", "2", "--threads", "1", "--out",
                             self.path(out), *args, **kwargs)

    def weights(self, out):
        with open(self.path(out + "/checkpoints/step-00000004.safetensors"), "rb") as f:
            return f.read()

    def test_results_do_not_depend_on_the_environment(self):
        self.train("plain")
        locales = os.path.join(self.folder, "locales")
        os.makedirs(locales)
        cases = {
            "nothing": {},
            "lists": {"LC_ALL": "tr_TR.UTF-8"},
            "time": {"TZ": ":/etc/passwd"},
            "temporary": {"TMPDIR": "/nonexistent"},
            "threads": {"OMP_NUM_THREADS": "abc"},
            "memory1": {"MALLOC_PERTURB_": "165"},
            "memory2": {"MALLOC_PERTURB_": "90"},
            "columns": {"COLUMNS": "0", "NO_COLOR": "1"},
        }
        if shutil.which("localedef"):
            made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8",
                                   os.path.join(locales, "de_DE.UTF-8")], capture_output=True)
            if os.path.isdir(os.path.join(locales, "de_DE.UTF-8")):
                cases["comma"] = {"LC_ALL": "de_DE.UTF-8", "LOCPATH": locales}
            else:
                print("no locale with a decimal comma:", made.stderr.decode())
        for name, env in cases.items():
            with self.subTest(name):
                self.train(name, env=env)
                self.assertEqual(self.weights(name), self.weights("plain"))

    def test_stdout_full(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for args in (["--help"], ["version"], ["check", LENET], ["layers"],
                     ["plan", LENET, "--devices", "2"], ["devices", "--json"]):
            with open("/dev/full", "w") as full:
                result = self.run_program(*args, stdout=full)
            self.assertEqual(result.returncode, IO, args)
            self.assertIn("convnet: error: cannot write to stdout: No space left", result.stderr)

    def test_closed_descriptors(self):
        model = self.write("tiny.yaml", TINY)
        for closed in ([0], [1], [2], [0, 1, 2]):
            out = self.path("run" + "".join(map(str, closed)))
            shell = " ".join(f"{fd}>&-" for fd in closed)
            code = subprocess.run(["sh", "-c", f'exec "$@" {shell}', "sh", PROGRAM, "train", model,
                                   "--devices", "1", "--out", out], timeout=60,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE).returncode
            self.assertEqual(code, OK, closed)
            checkpoint = self.accepted("checkpoint", out).stdout
            self.assertIn("all checksums right", checkpoint)

    def test_reader_that_goes_away(self):
        result = subprocess.run(["sh", "-c", f'"{PROGRAM}" plan {LENET} --devices 8 | head -1'],
                                cwd=SOURCE, capture_output=True, timeout=60)
        self.assertEqual(result.stderr, b"")
        read, write = os.pipe()
        os.close(read)
        result = self.run_program("plan", LENET, "--devices", "8", stdout=write)
        os.close(write)
        self.assertEqual((result.returncode, result.stderr), (128 + signal.SIGPIPE, ""))

    def test_training_goes_on_without_a_reader(self):
        model = self.write("tiny.yaml", TINY)
        read, write = os.pipe()
        os.close(read)
        result = self.run_program("train", model, "--out", self.path("run"), stdout=write,
                                  stderr=write)
        os.close(write)
        self.assertIn(result.returncode, (OK, 128 + signal.SIGPIPE))
        self.assertIn("after 4 steps", self.accepted("checkpoint", self.path("run")).stdout)

    def test_small_stack(self):
        subprocess.run(["sh", "-c", f'ulimit -s 256; exec "{PROGRAM}" plan {LENET} --devices 8'],
                       cwd=SOURCE, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def test_file_size_limit(self):
        model = self.write("tiny.yaml", TINY)
        result = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", PROGRAM, "train", model,
                                 "--out", self.path("run")], capture_output=True, timeout=60)
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertIn(b"convnet: error: ", result.stderr)
        self.assertIn(b"File too large", result.stderr)

    def test_deleted_working_directory(self):
        gone = self.path("gone")
        os.mkdir(gone)
        result = subprocess.run(["sh", "-c", f'cd "{gone}"; rmdir "{gone}"; exec "$@"', "sh", PROGRAM,
                                 "check", os.path.join(SOURCE, LENET)], capture_output=True)
        self.assertIn(result.returncode, (OK, IO), result.stderr)


if __name__ == "__main__":
    main()
