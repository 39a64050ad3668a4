# If this fails, splitting a network over devices or passes has changed what is learned: the three schemes
# of Krizhevsky's 'One weird trick' (2014).
import re

from small_alexnet import *

STEPS = int(os.environ.get("CONVNET_STEPS", "20"))


class OneWeirdTrick(SmallAlexNet):
    def test_schemes_and_devices(self):
        wanted = self.run_small("serial", 1, "whole", STEPS)
        for scheme in ("whole", "owner", "stripe"):
            for devices in (1, 2, 4, 8):
                if (scheme, devices) == ("whole", 1):
                    continue
                with self.subTest(scheme=scheme, devices=devices):
                    self.assertTrue(self.run_small(f"{scheme}{devices}", devices, scheme, STEPS) == wanted,
                                    "weights differ")

    def test_twice_the_batch(self):
        """Blocks of examples for 8 devices, and for two passes of 4 devices in stripes."""
        sets = ["batch=128"]
        wanted = self.run_small("serial", 1, "whole", 3, sets=sets)
        for scheme, devices in (("whole", 8), ("owner", 8), ("stripe", 4)):
            with self.subTest(scheme=scheme, devices=devices):
                self.assertTrue(self.run_small(f"{scheme}{devices}", devices, scheme, 3, sets=sets) == wanted,
                                "weights differ")

    def test_updates_after_each_pass_are_another_method(self):
        exact = self.run_small("exact", 2, "owner", 3)
        variant = self.run_small("variant", 2, "owner", 3,
                                 sets=["defaults.fc.update_period=1"])
        self.assertFalse(variant == exact, "fully-connected layers were updated once a step")

    def lenet_loss(self, seed, sets=()):
        """Of the 10,000 test images of Fashion-MNIST after 200 steps in passes, owner by owner."""
        sets = ["defaults.fc.parallel=model", "defaults.fc.exchange=owner", "train.scaling={batch: 128, rate: linear}",
                f"train.seed={seed}", *sets]
        line = [PROGRAM, "train", LENET, "--devices", "4", "--threads", "1", "--steps", "200", "--quiet", *NO_TESTS,
                "--out", self.path(f"lenet-{seed}-{len(sets)}")]
        for setting in sets:
            line += ["--set", setting]
        result = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=550)
        self.assertEqual(result.returncode, 0, result.stderr)
        return float(re.search(r"test: loss ([0-9.e-]+)", result.stdout + result.stderr).group(1))

    def test_updates_after_each_pass_learn_as_well(self):
        """The test loss is at most 2 % above that of one update a step."""
        if not os.path.isdir(DATA_SET):
            self.skipTest("needs Debian's package dataset-fashion-mnist")
        for seed in (1, 2, 3):
            with self.subTest(seed=seed):
                exact = self.lenet_loss(seed)
                variant = self.lenet_loss(seed, ["defaults.fc.update_period=1"])
                print(f"seed {seed}: test loss {exact}, with updates after each pass {variant} "
                      f"({100 * (variant / exact - 1):+.1f} %)")
                self.assertLessEqual(variant, 1.02 * exact)

    def test_passes_of_fewer_blocks_than_devices(self):
        sets = ["defaults.fc.parallel=data", "defaults.fc.passes=2"]  # 2 blocks of examples a pass
        wanted = self.run_small("one", 1, "owner", 3, sets=sets)
        self.assertTrue(self.run_small("four", 4, "owner", 3, sets=sets) == wanted, "weights differ")

    def test_small_versions_of_the_model_files(self):
        files = {"alexnet-owt-2": (2, SMALL), "alexnet-owt-8": (8, SMALL), "alexnet-two-tower": (2, SMALL),
                 "vgg-d-spatial": (4, [s.replace("67, 67", "32, 32").replace("batch=64", "batch=32") for s in SMALL])}
        for name, (devices, sets) in files.items():
            with self.subTest(name):
                model = os.path.join(SOURCE, f"model-defs/{name}.yaml")
                weights = self.run_small(f"{name}-placed", devices, None, 2, model=model, sets=sets)
                self.assertTrue(self.run_small(f"{name}-serial", 1, None, 2, model=model, sets=sets) == weights,
                                "weights differ")


if __name__ == "__main__":
    main()
