# If this fails, a model file that we ship has a mistake, or its plan is not what its comment says.
import glob
import json

from cli_case import *


class Models(Case):
    def plan(self, *args):
        return json.loads(self.accepted("plan", *args, "--json").stdout)

    def test_all_check_and_plan(self):
        files = sorted(glob.glob(os.path.join(SOURCE, "model-defs/*.yaml")))
        self.assertGreaterEqual(len(files), 3)
        for file in files:
            for devices in ("1", "2", "3", "4"):
                with self.subTest(file=os.path.basename(file), devices=devices):
                    self.assertIn("no mistakes", self.accepted("check", file, "--devices", devices).stdout)
                    for phase in ("train", "test"):
                        self.accepted("plan", file, "--devices", devices, "--phase", phase)

    def test_plans_are_the_same_each_time(self):
        args = ("plan", LENET, "--devices", "4")
        self.assertEqual(self.accepted(*args).stdout, self.accepted(*args).stdout)

    def test_dumps_of_passes(self):
        text = self.accepted("plan", LENET, "--devices", "2", "--dump-after", "grad").stdout
        self.assertIn("conv2.w.grad", text)
        self.refused(USAGE, "did you mean 'shard'?", "plan", LENET, "--dump-after", "shrad")


if __name__ == "__main__":
    main()
