# If this fails, a model file that we ship has a mistake, or its plan is not what its comment says.
import glob
import json

from cli_case import *


class Models(Case):
    def test_all_check_and_plan(self):
        files = sorted(glob.glob(os.path.join(SOURCE, "model-defs/*.yaml")))
        self.assertGreaterEqual(len(files), 3)
        for file in files:
            for devices in ("1", "2", "3", "4"):
                with self.subTest(file=os.path.basename(file), devices=devices):
                    self.assertIn("no mistakes", self.accepted("check", file, "--devices", devices).stdout)
                    for phase in ("train", "test"):
                        self.accepted("plan", file, "--devices", devices, "--phase", phase)

    def test_alexnet(self):
        plan = json.loads(self.accepted("plan", "model-defs/alexnet.yaml", "--devices", "4", "--set",
                                        "batch=512", "--json").stdout)
        self.assertEqual(plan["parameters"], 61100840)
        # Each device sends and receives 3/4 of the gradients and 3/4 of the updated parameters, holds
        # all parameters, and 1/4 of the momentum.
        self.assertEqual(plan["bytes_sync"], 2 * 61100840 * 4 * 3 // 4)
        self.assertEqual(plan["bytes_backward"], 0)
        for device in plan["devices"]:
            # Buffers are rounded up to 64 bytes.
            self.assertLess(abs(device["parameter_bytes"] - 61100840 * 4), 16 * 64)
            self.assertLess(abs(device["state_bytes"] - 61100840), 16 * 64)
            self.assertGreaterEqual(device["arena_bytes"], device["arena_bound"])
            self.assertLessEqual(device["arena_bytes"], 1.05 * device["arena_bound"])
        text = self.accepted("plan", "model-defs/alexnet.yaml", "--devices", "4").stdout
        self.assertIn("61,100,840", text)

    def test_plans_are_the_same_each_time(self):
        args = ("plan", LENET, "--devices", "4")
        self.assertEqual(self.accepted(*args).stdout, self.accepted(*args).stdout)

    def test_dumps_of_passes(self):
        text = self.accepted("plan", LENET, "--devices", "2", "--dump-after", "grad").stdout
        self.assertIn("conv2.w.grad", text)
        self.refused(USAGE, "did you mean 'shard'?", "plan", LENET, "--dump-after", "shrad")


if __name__ == "__main__":
    main()
