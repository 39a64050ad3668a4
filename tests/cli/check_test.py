# If this fails, what a user sees of a mistake in a model file, or the exit code a script gets, is wrong.
import glob
import json

from cli_case import *

FOLDER = os.path.join(SOURCE, "tests/diagnostics")


class Check(Case):
    def test_files_with_mistakes(self):
        """Each file prints exactly what tests/diagnostics holds for it."""
        files = sorted(f for f in os.listdir(FOLDER) if f.endswith((".yaml", ".prototxt")))
        self.assertGreater(len(files), 10)
        for file in files:
            with self.subTest(file):
                with open(os.path.join(FOLDER, file), "rb") as f:
                    text = f.read()
                with open(os.path.join(FOLDER, file + ".err"), encoding="utf-8") as f:
                    wanted = f.read()
                sets = []
                for line in text.decode("utf-8", "replace").splitlines():
                    if not line.startswith("# set: "):
                        break
                    sets += ["--set", line[len("# set: "):]]
                result = self.run_program("check", file, *sets, cwd=FOLDER, timeout=20)
                self.assertEqual(result.stderr, wanted)
                codes = (MODEL, USAGE, LIMIT) if "error: " in wanted else (OK,)
                self.assertIn(result.returncode, codes)
                self.assertEqual(result.stdout == "", result.returncode != OK)

    def test_eight_mistakes(self):
        result = self.run_program("check", "eight-mistakes.yaml", cwd=FOLDER)
        self.assertEqual(result.returncode, MODEL)
        self.assertEqual(len(re.findall(r"(?m)^eight-mistakes.yaml:\d+:\d+: error: ", result.stderr)), 8)

    def test_json(self):
        result = self.run_program("check", "eight-mistakes.yaml", "--json", cwd=FOLDER)
        self.assertEqual((result.returncode, result.stderr), (MODEL, ""))
        answer = json.loads(result.stdout)
        self.assertFalse(answer["ok"])
        self.assertEqual(len(answer["diagnostics"]), 8)
        self.assertEqual(answer["diagnostics"][0]["line"], 3)
        good = json.loads(self.accepted("check", LENET, "--json").stdout)
        self.assertEqual((good["ok"], good["parameters"], good["batch"]), (True, 431080, 128))

    def test_files_that_are_none(self):
        self.refused(MODEL, "No such file", "check", self.path("absent.yaml"))
        self.refused(MODEL, "directory", "check", self.folder + "/")
        os.mkfifo(self.path("fifo.yaml"))
        self.refused(MODEL, "regular file", "check", self.path("fifo.yaml"))
        self.refused(MODEL, "regular file", "check", self.link("zero.yaml", "/dev/zero"))
        if os.geteuid() != 0:
            os.chmod(self.write("closed.yaml", TINY), 0)
            self.refused(MODEL, "Permission denied", "check", self.path("closed.yaml"))

    def link(self, name, target):
        os.symlink(target, self.path(name))
        return self.path(name)

    def test_set(self):
        self.assertIn("batch 256", self.accepted("check", LENET, "--set", "batch=256").stdout)
        self.refused(MODEL, "--set", "check", LENET, "--set", "layers.conv1.kernel=0")
        self.refused(MODEL, ["--set", "did you mean"], "check", LENET, "--set", "layers.conv9.kernel=3")
        self.refused(USAGE, "expected PATH=VALUE", "check", LENET, "--set", "nonsense")

    def test_devices(self):
        self.assertIn(", 8 devices", self.accepted("check", LENET, "--devices", "8").stdout)
        result = self.accepted("check", LENET, "--devices", "9")
        self.assertEqual(result.stderr.count("only 8 of 9 devices have work"), 1)

    def test_mistakes_that_only_training_meets(self):
        def without(key):
            return self.write("m.yaml", re.sub(rf"(?ms)^{key}:.*?(?=^\w|\Z)", "", TINY))

        self.accepted("check", without("train"))
        self.refused(MODEL, "no 'train' section", "train", without("train"), "--out", self.path("run"))
        self.refused(MODEL, "no data to train on", "train", without("data"), "--out", self.path("run"))
        self.refused(MODEL, "no data to train on", "verify", without("data"))
        self.assertFalse(os.path.exists(self.path("run")))

    def test_every_line_deleted(self):
        lines = TINY.splitlines(keepends=True)
        for i in range(len(lines)):
            file = self.write("m.yaml", "".join(lines[:i] + lines[i + 1:]))
            self.assertIn(self.run_program("check", file, timeout=10).returncode, (OK, MODEL), lines[i])

    def test_line_ends_and_byte_order_mark(self):
        wanted = self.accepted("plan", self.write("m.yaml", TINY)).stdout
        for text in (TINY.replace("\n", "\r\n"), "\ufeff" + TINY):
            self.assertEqual(self.accepted("plan", self.write("m.yaml", text)).stdout, wanted)


class Layers(Case):
    def test_layers(self):
        text = self.accepted("layers").stdout
        types = [layer["type"] for layer in json.loads(self.accepted("layers", "--json").stdout)["layers"]]
        self.assertIn("conv", types)
        for layer in types:
            self.assertRegex(text, rf"(?m)^  {layer} ")
            self.assertIn(f"Attributes of all layers", self.accepted("layers", layer).stdout)
            self.assertEqual(json.loads(self.accepted("layers", layer, "--json").stdout)["type"], layer)
        # In YAML the two stand in one map.
        all_layers = json.loads(self.accepted("layers", "--json").stdout)
        common = {attribute["name"] for attribute in all_layers["attributes"]}
        self.assertIn("devices", common)
        for layer in all_layers["layers"]:
            self.assertFalse(common & {attribute["name"] for attribute in layer["attributes"]}, layer["type"])
        self.refused(USAGE, "did you mean 'conv'?", "layers", "covn")
        self.refused(USAGE, "no layer type", "layers", "transformer")

    def test_reference_is_the_file(self):
        with open(os.path.join(SOURCE, "model-defs/README.md")) as f:
            self.assertEqual(self.accepted("layers", "--reference").stdout, f.read())


class Runs(Case):
    def setUp(self):
        super().setUp()
        self.model = self.write("tiny.yaml", TINY)
        self.run_directory = self.path("run")

    def train(self, *args):
        return self.accepted("train", self.model, "--out", self.run_directory, *args)

    def test_train_test_checkpoint(self):
        result = self.train()
        self.assertIn("after 4 steps", result.stdout)
        self.assertIn("on 40 examples", result.stdout)
        tested = json.loads(self.accepted("test", self.run_directory, "--json").stdout)
        self.assertEqual((tested["step"], tested["examples"]), (4, 40))
        self.assertEqual(tested, json.loads(self.accepted("test", self.model, "--weights",
                                                          self.run_directory, "--json").stdout))
        listed = json.loads(self.accepted("checkpoint", self.run_directory, "--json").stdout)
        self.assertEqual(listed["step"], 4)
        self.assertIn("conv1.w", [tensor["name"] for tensor in listed["tensors"]])
        self.assertEqual(self.accepted("checkpoint", self.run_directory, "--model").stdout, TINY)
        with open(os.path.join(self.run_directory, "log.jsonl")) as log:
            events = [json.loads(line)["event"] for line in log]
        self.assertEqual(events.count("step"), 4)

    def test_directory_names(self):
        for number in (1, 2):
            self.accepted("train", self.model, cwd=self.folder)
            self.assertTrue(os.path.isdir(self.path(f"runs/tiny-{number}/checkpoints")))

    def test_directory_of_another_run(self):
        self.train()
        before = self.contents()
        self.refused(USAGE, ["holds a run", "--resume"], "train", self.model, "--out",
                     self.run_directory)
        self.assertEqual(self.contents(), before)

    def contents(self):
        folder = os.path.join(self.run_directory, "checkpoints")
        contents = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as f:
                contents[name] = f.read()
        return contents

    def test_directory_in_use(self):
        running = subprocess.Popen([PROGRAM, "train", self.model, "--out", self.run_directory, "--steps",
                                    "1000000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            while not self.is_saved():
                self.assertIsNone(running.poll())
            self.refused(BUSY, str(running.pid), "train", "--resume", self.run_directory)
            self.refused(BUSY, str(running.pid), "train", self.model, "--out", self.run_directory)
        finally:
            running.kill()
            running.wait()
        self.accepted("train", "--resume", self.run_directory, "--steps", "1")

    def is_saved(self):
        folder = os.path.join(self.run_directory, "checkpoints")
        return os.path.isdir(folder) and any(n.endswith(".safetensors") for n in os.listdir(folder))

    def test_places_where_no_run_can_be(self):
        self.refused(IO, "run", "train", self.model, "--out", self.write("file", "x") + "/run")
        self.refused(IO, "file", "train", self.model, "--out", self.path("file"))
        self.refused(IO, "File name too long", "train", self.model, "--out", self.path("x" * 300))
        self.refused(IO, "x" * 1000, "train", self.model, "--out", self.path("x" * 5000))
        self.refused(USAGE, "--out is empty", "train", self.model, "--out", "")

    def test_nothing_to_resume(self):
        self.refused(CHECKPOINT, "no run", "train", "--resume", self.path("absent"))
        os.mkdir(self.path("empty"))
        self.refused(CHECKPOINT, "empty", "train", "--resume", self.path("empty"))
        self.refused(USAGE, "name a model file", "train")

    def test_missing_data(self):
        model = self.write("m.yaml", re.sub(r"train: \{synthetic.*", "train: {idx: nowhere/train}", TINY))
        self.refused(DATA, ["nowhere/train", "--data"], "train", model, "--out", self.run_directory)
        self.assertFalse(os.path.exists(self.run_directory))
        self.accepted("verify", model, "--synthetic")

    def test_weights_that_do_not_fit(self):
        self.train()
        wider = self.write("wider.yaml", TINY.replace("filters: 4", "filters: 5"))
        self.refused(CHECKPOINT, ["conv1.w is [4, 1, 3, 3]", "[5, 1, 3, 3]"], "test", wider, "--weights",
                     self.run_directory)
        longer = self.write("longer.yaml", TINY.replace("  - {name: loss", """\
  - {name: fc2, type: fc, outputs: 3}
  - {name: loss""").replace("[fc1, label]", "[fc2, label]"))
        self.refused(CHECKPOINT, ["lacks 2 parameters", "fc2.w"], "test", longer, "--weights",
                     self.run_directory)
        self.refused(USAGE, "--weights", "test", self.model)

    def test_damaged_checkpoints(self):
        self.train("--set", "train.checkpoint={steps: 2}")
        newest = os.path.join(self.run_directory, "checkpoints/step-00000004.safetensors")
        with open(newest, "r+b") as f:
            f.seek(-5, 2)
            byte = f.read(1)[0]
            f.seek(-5, 2)
            f.write(bytes([byte ^ 1]))
        self.refused(CHECKPOINT, ["step-00000004", "checksum"], "checkpoint", newest)
        result = self.accepted("train", "--resume", self.run_directory)
        self.assertIn("warning", result.stderr)
        self.assertIn("step-00000004", result.stderr)
        self.assertIn("after 4 steps", self.accepted("checkpoint", self.run_directory).stdout)

    def test_not_finite(self):
        result = self.refused(NOT_FINITE, ["'fc1'", "step"], "train", self.model, "--out",
                              self.run_directory, "--set", "train.rate.base=1e6", "--steps", "200",
                              "--set", "train.decay=1e6", "--quiet")
        self.assertRegex(result.stderr, r"tiny\.yaml:\d+")


if __name__ == "__main__":
    main()
