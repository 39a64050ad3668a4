# If this fails, a command in README.md does not do what it says, or a script is broken.
import shutil

from cli_case import *


class Readme(Case):
    def commands(self):
        with open(os.path.join(SOURCE, "README.md")) as f:
            blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", f.read())
        return [line for block in blocks for line in block.splitlines() if line.strip()]

    def test_commands_run(self):
        commands = self.commands()
        self.assertGreater(len(commands), 5)
        shutil.copytree(os.path.join(SOURCE, "model-defs"), self.path("model-defs"))
        # The network is trained for some steps only.
        shorter = {"train model-defs/": " --steps 20"}
        env = dict(os.environ, PATH=os.path.dirname(PROGRAM) + ":" + os.environ["PATH"])
        for command in commands:
            with self.subTest(command):
                line = command.split("#")[0].strip()
                for part, more in shorter.items():
                    if part in line:
                        line += more
                result = subprocess.run(["bash", "-c", line], cwd=self.folder, env=env, timeout=250,
                                        capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_every_command_is_shown(self):
        with open(os.path.join(SOURCE, "README.md")) as f:
            text = f.read()
        for name in "check train test plan verify layers checkpoint devices".split():
            self.assertIn(f"convnet {name}", text)

    def test_model_in_readme_is_right(self):
        with open(os.path.join(SOURCE, "README.md")) as f:
            model = re.search(r"(?ms)^```yaml\n(.*?)^```", f.read()).group(1)
        self.assertIn("no mistakes", self.accepted("check", self.write("model.yaml", model)).stdout)

    def test_mistake_in_readme_looks_so(self):
        with open(os.path.join(SOURCE, "README.md")) as f:
            text = f.read()
        model = re.search(r"(?ms)^```yaml\n(.*?)^```", text).group(1)
        shown = re.search(r"(?ms)^```\n(model.yaml:.*?)^```", text).group(1)
        self.write("model.yaml", model.replace("filters: 20", "filtres: 20"))
        result = self.run_program("check", "model.yaml", cwd=self.folder)
        self.assertEqual(result.stderr, shown)

    def test_scripts(self):
        for script in ("tools/setup", "tools/quickstart", "tools/test", ".ci/run"):
            path = os.path.join(SOURCE, script)
            self.assertTrue(os.access(path, os.X_OK), script)
            subprocess.run(["bash", "-n", path], check=True)
        wrong = subprocess.run([os.path.join(SOURCE, "tools/setup"), "--nonsense"], capture_output=True)
        self.assertEqual(wrong.returncode, 2)


if __name__ == "__main__":
    main()
