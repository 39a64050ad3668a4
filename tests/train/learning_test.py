# If this fails, training runs but the network does not learn, or testing does not say so.
import json

from train_case import *


class Learning(Case):
    def test_lenet_learns(self):
        # A third of an epoch on the real pictures.
        self.train("run", 150, devices=2)
        result = subprocess.run([PROGRAM, "test", LENET, "--weights", self.path("run"), "--json"],
                                capture_output=True, check=True)
        answer = json.loads(result.stdout)
        self.assertEqual(answer["examples"], 10000)
        self.assertGreater(answer["metrics"]["top1"], 0.75)

    def test_random_weights_know_nothing(self):
        self.train("run", 1, args=["--set", "train.rate.base=0"])
        result = subprocess.run([PROGRAM, "test", LENET, "--weights", self.path("run"), "--json"],
                                capture_output=True, check=True)
        self.assertLess(json.loads(result.stdout)["metrics"]["top1"], 0.35)


if __name__ == "__main__":
    main()
