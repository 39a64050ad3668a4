# If this fails, the number of devices or threads, the instruction set or chance has become part of the
# mathematics.
from train_case import *

STEPS = int(os.environ.get("CONVNET_STEPS", "200"))


class Determinism(Case):
    def compare(self, cases):
        wanted = self.train("one", STEPS)
        for name, kwargs in cases.items():
            with self.subTest(name):
                self.assertTrue(self.train(name, STEPS, **kwargs) == wanted, "weights differ")

    def test_devices(self):
        self.compare({f"devices{k}": {"devices": k} for k in (2, 4, 8)})

    def test_threads(self):
        cases = {f"threads{t}": {"threads": t} for t in (2, 3, 8)}
        cases["both"] = {"devices": 2, "threads": 3}
        self.compare(cases)

    def test_instruction_sets(self):
        known = instruction_sets()
        for isa in ("avx2", "avx512"):
            if isa not in known:
                print(f"skipped: this machine has no {isa}")
        self.compare({isa: {"isa": isa, "devices": 2} for isa in known})

    def test_twice(self):
        self.compare({"again": {}})

    def test_devices_that_do_not_divide_the_shards(self):
        # No promise between 1 and 3; but 3 must repeat itself.
        self.assertTrue(self.train("three", 10, devices=3) ==
                        self.train("again", 10, devices=3, threads=2), "weights differ")


if __name__ == "__main__":
    main()
