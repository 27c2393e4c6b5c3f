"""Defaults that users set: what sets which option, what a project may not set, and how mistakes are told."""

import pytest

TEXT = "The cat sat on the mat."


@pytest.fixture
def write(monkeypatch, tmp_path):
    """A function that writes the project's settings and the user's own."""
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "below")

    def write(project="", users=""):
        (tmp_path / "project" / "pyproject.toml").write_text(f"[tool.attnscope]\n{project}")
        (tmp_path / "config.toml").write_text(users)
        monkeypatch.setattr("attnscope.cli.command.users_file", lambda: tmp_path / "config.toml")

    return write


@pytest.mark.parametrize(
    ("setting", "typed"),
    [
        ('model = "own-causal"', ("-m", "own-causal")),
        ("hide-special = true", ("--hide-special",)),
        ("hide_special = true", ("--hide-special",)),
        ("max-tokens = 5", ("--max-tokens", "5")),
        ('scale = "row"', ("--scale", "row")),
        ("quiet = true\nmax-tokens = 5", ("-q", "--max-tokens", "5")),
    ],
)
@pytest.mark.parametrize("users_own", [False, True])
def test_a_setting_is_a_default_of_its_option(run, write, setting, typed, users_own):
    wanted = run("show", TEXT, "--head", "L1H1", *typed)
    write(**{"users" if users_own else "project": setting})
    ran = run("show", TEXT, "--head", "L1H1")
    assert wanted.code == ran.code == 0
    assert ran.out == wanted.out


def test_what_is_typed_comes_before_the_variable_the_project_and_the_user(run, write, monkeypatch):
    def model():
        return run("show", TEXT, *typed).out.split()[0]

    typed = ()
    write(users='model = "no/model"')
    assert run("show", TEXT).code == 2
    write(project='model = "own-causal"', users='model = "no/model"')
    assert model() == "own-causal"
    monkeypatch.setenv("ATTNSCOPE_MODEL", "own")
    assert model() == "own"
    typed = ("-m", "own-causal")
    assert model() == "own-causal"


def test_the_defaults_are_listed_with_their_origin(run, write, tmp_path, monkeypatch):
    write(project="words = true", users="dpi = 300")
    monkeypatch.setenv("ATTNSCOPE_MODEL", "own-causal")
    monkeypatch.setenv("COLUMNS", "300")
    lines = [line.split() for line in run("info", "--defaults").out.splitlines()]
    assert ["--model", "own-causal", "ATTNSCOPE_MODEL"] in lines
    assert ["--words", "True", str(tmp_path / "project" / "pyproject.toml")] in lines
    assert ["--dpi", "300", str(tmp_path / "config.toml")] in lines


def test_a_file_of_weights_needs_no_model_whatever_is_set(run, write, tmp_path, monkeypatch):
    assert run("show", TEXT, "-o", tmp_path / "a.npz").code == 0
    write(users='dtype = "bfloat16"')
    monkeypatch.setenv("ATTNSCOPE_MODEL", "no/model")
    assert run("show", "--from", tmp_path / "a.npz", "--head", "L0H0").code == 0
    assert run("info", "own").code == 0


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('modle = "own"', "sets modle: no command has an option --modle"),
        ("dpi = 5", "--dpi: 5.0 is not in the range 10<=x<=1200 (set in "),
        ('scale = "max"', "--scale: 'max' is not one of 'auto', 'fixed', 'row', 'head' (set in "),
        ('words = "yes"', "sets words to 'yes': write true or false"),
        ("model = true", "sets model to True: write a text or a number"),
        ("model = [", "cannot be read: "),
        ('trust-remote-code = "x"', "options that run code or write files belong in "),
        ("allow_pickle = true", "options that run code or write files belong in "),
        ('out = "x.png"', "options that run code or write files belong in "),
        ('model = "evil.py:Model"', "options that run code or write files belong in "),
    ],
)
def test_a_wrong_setting_of_a_project_is_one_sentence_that_names_its_file(
    run, write, tmp_path, setting, sentence
):
    write(project=setting)
    ran = run("show", TEXT)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert sentence in ran.err
    assert str(tmp_path / "project" / "pyproject.toml") in ran.err


def test_the_file_of_another_project_is_not_read(run, write, tmp_path, monkeypatch):
    write(project="max-tokens = 5")
    monkeypatch.chdir(tmp_path)
    assert "cut: the first 5" not in run("show", TEXT).out
