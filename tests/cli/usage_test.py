# If this fails, a mistake on the command line is not explained, or ends with the wrong exit code.
import os

from cli_case import *

COMMANDS = "check plan train test verify layers checkpoint devices version".split()


class Usage(Case):
    def test_no_arguments(self):
        result = self.run_program()
        self.assertEqual(result.returncode, USAGE)
        self.assertEqual(result.stdout, "")
        for command in COMMANDS:
            self.assertRegex(result.stderr, rf"(?m)^  {command} ")

    def test_help(self):
        for args in (["--help"], ["-h"], ["help"]):
            text = self.accepted(*args, env={}).stdout
            for word in COMMANDS + ["usage:", "exit codes:", "model file"]:
                self.assertIn(word, text)

    def test_help_of_each_command(self):
        for command in COMMANDS:
            for args in ([command, "--help"], ["help", command], [command, "--nonsense", "-h"]):
                text = self.accepted(*args, env={}).stdout
                self.assertIn(f"usage: convnet {command}", text)
                self.assertIn(f"\nexamples:\n  convnet {command}", text)
                for line in text.splitlines():
                    self.assertLessEqual(len(line), 100, line)

    def test_every_option_is_documented(self):
        for command in COMMANDS:
            text = self.accepted(command, "--help").stdout
            options = re.findall(r"(?m)^  (--[a-z-]+)", text)
            self.assertIn("--help", options)
            self.assertEqual(len(options), len(set(options)))
            for option in options:
                self.assertRegex(text, rf"(?m)^  {option}( \S+)?\s+\S+")

    def test_version(self):
        for args in (["version"], ["--version"]):
            self.assertRegex(self.accepted(*args, env={}).stdout, r"^convnet \d+\.\d+\.\d+")

    def test_unknown_command(self):
        self.refused(USAGE, ["'trian'", "did you mean 'train'?"], "trian", LENET)
        self.refused(USAGE, "unknown command 'xyzzy'", "xyzzy")
        self.refused(USAGE, "unknown option '--steps'", "--steps", "3")

    def test_unknown_option(self):
        self.refused(USAGE, ["'--stesp'", "did you mean '--steps'?"], "train", LENET, "--stesp", "5")
        self.refused(USAGE, "did you mean '--seed'?", "train", LENET, "--seeed=5")
        self.refused(USAGE, "unknown option '-x'", "check", LENET, "-x")

    def test_missing_value(self):
        self.refused(USAGE, "--steps needs a value", "train", LENET, "--steps")
        self.refused(USAGE, "--set needs a value", "check", LENET, "--set")

    def test_option_twice(self):
        self.refused(USAGE, "--steps is given twice", "train", LENET, "--steps", "3", "--steps", "4")
        self.refused(USAGE, "--json is given twice", "check", LENET, "--json", "--json")

    def test_missing_and_extra_arguments(self):
        self.refused(USAGE, "FILE is missing", "check")
        self.refused(USAGE, "unexpected argument 'b'", "check", "a", "b")
        self.refused(USAGE, "FILE is empty", "check", "")

    def test_numbers(self):
        for value in ("abc", "-1", "9223372036854775808", "1e3", "", "0", "1.5", " 3", "0x10"):
            self.refused(USAGE, "--steps takes a whole number", "train", LENET, "--steps=" + value
                         if value else "--steps", *([] if value else [""]))
        for value in ("0", "-1", "100000"):
            self.refused(USAGE, "--threads takes a whole number from 1 to", "train", LENET,
                         "--threads", value)
        for value in ("-1", "18446744073709551616"):
            self.refused(USAGE, "--seed takes a whole number", "train", LENET, "--seed", value)

    def test_devices(self):
        for value in ("0,0", "-1", "0,,1", "cpu:0", "cpu:", "cpu:4x", "gpu:1", "", "100000", "cpu:-2"):
            self.refused(USAGE, "--devices", "train", LENET, "--devices", value)
        self.refused(USAGE, "cuda", "train", LENET, "--devices", "cuda:0-3")

    def test_choices(self):
        self.refused(USAGE, ["--isa takes", "did you mean 'avx512'?"], "train", LENET, "--isa",
                     "avx51")
        self.refused(USAGE, "--color takes", "check", LENET, "--color", "blue")

    def test_options_that_exclude_each_other(self):
        self.refused(USAGE, ["--resume", "FILE"], "train", LENET, "--resume", self.path("run"))
        self.refused(USAGE, "--steps and --epochs exclude each other", "train", LENET, "--steps", "2",
                     "--epochs", "2")
        self.refused(USAGE, "exclude each other", "plan", LENET, "--text", "--json")

    def test_control_characters_are_escaped(self):
        self.refused(USAGE, r"\x1b[31m", "check", LENET, "--\x1b[31mred\x07")
        self.refused(USAGE, r"\xff", os.fsencode("tr") + b"\xff")

    def test_colour_only_where_wanted(self):
        plain = self.run_program("trian").stderr
        self.assertNotIn("\x1b", plain)
        mistake = self.write("m.yaml", TINY.replace("filters", "filtres"))
        self.assertNotIn("\x1b", self.run_program("check", mistake).stderr)
        self.assertIn("\x1b", self.run_program("check", mistake, "--color", "always").stderr)


if __name__ == "__main__":
    main()
