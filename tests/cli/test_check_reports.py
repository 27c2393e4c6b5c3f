"""What ``check`` reports to CI: JUnit XML, annotations of GitHub, the action and the hook of pre-commit."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnscope.questions.check import CheckResult, Verdict, github_annotations, junit_report

ROOT = Path(__file__).parents[2]
TEXT = "The cat sat on the mat because it was tired."
CLAIMS = ["L2H1.previous > 0.5", "all.entropy < 0.001"]


def test_junit_has_a_case_for_each_claim(run):
    ran = run("check", *CLAIMS, TEXT, "--format", "junit")
    suite = ElementTree.fromstring(ran.out.encode())
    cases = suite.findall("testcase")
    assert ran.code == 1
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [(case.get("classname"), case.get("name")) for case in cases] == [
        ("own", claim) for claim in CLAIMS
    ]
    assert [case.find("failure") is None for case in cases] == [True, False]
    plain = run("check", *CLAIMS, TEXT).out.split()
    assert cases[0].find("system-out").text in plain  # the same evidence


def test_github_lines_annotate_what_fails(run):
    ran = run("check", *CLAIMS, TEXT, "--format", "github")
    good, bad = ran.out.splitlines()
    assert ran.code == 1
    assert good.startswith("::notice title=attnscope check::L2H1.previous > 0.5: it holds, 0.")
    assert bad.startswith("::error title=attnscope check::all.entropy < 0.001: it fails, ")


def test_reports_escape_claims_and_evidence():
    verdict = Verdict('a<b & "c"', False, "50%\n::set-output name=x::y")
    result = CheckResult((verdict,))
    case = ElementTree.fromstring(junit_report(result, 0.05, "<m>").encode())[0]
    assert case.get("name") == verdict.claim
    assert case.get("classname") == "<m>"
    line = '::error title=attnscope check::a<b & "c": it fails, 50%25%0A::set-output name=x::y'
    assert github_annotations(result, 0.05) == line


@pytest.mark.slow
@pytest.mark.subprocess
def test_action_passes_its_inputs_on(tmp_path):
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / ".github/check/action.yml").read_text())
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "attnscope check"
    step = action["runs"]["steps"][-1]
    assert step["env"].keys() == {name.upper() for name in action["inputs"]}
    program = tmp_path / "attnscope"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnscope "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"CLAIMS": "\n".join(["", *CLAIMS, " "]), "TEXTS": str(ROOT / "sample_inputs" / "sentences.txt")}
    env |= {"MODEL": action["inputs"]["model"]["default"], "ARGUMENTS": "--limit\n3\n"}
    ran = subprocess.run(["bash", "-e", "-c", step["run"]], env=env, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    assert [line.partition(" ")[0] for line in ran.stdout.splitlines()] == ["::notice", "::error"]


def test_snapshot_of_another_model_names_both_and_the_missing_heads(run, tmp_path):
    run("check", TEXT, "--save-snapshot", tmp_path / "own.json")
    other = run("check", TEXT, "--with-snapshot", tmp_path / "own.json", "-m", "own-causal")
    assert other.code == 1
    said = " ".join(other.out.split())
    assert "other heads: 32 only in own.json, 12 only here; the snapshot is of own · “" in said
    assert "this is own-causal · “" in said
    assert "the texts differ" not in said
