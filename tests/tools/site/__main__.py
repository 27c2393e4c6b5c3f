"""Builds the site into a folder outside of the repository; it needs no network, to build or to read.

Open its ``index.html``, from the disk or from a server; its search runs in the reader's browser.

Pages are the project's own Markdown files at their own paths, and four that are generated from the code:
measures, the Python API, schemas, and a gallery of commands with their pictures. A broken link is an error.
"""

import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import attnscope
from attnscope.measures import MEASURES, explain
from attnscope.notebook.run import Run
from attnscope.questions.answer import printed_records, schema_of
from tests.tools.readme import ROOT, run

CONFIG, WORKER = (Path(__file__).with_name(name) for name in ("mkdocs.yml", "iframe-worker.js"))
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
TEXT = "The cat sat on the mat because it was tired."
PICTURES = {
    "Every head": f'attnscope show "{TEXT}"',
    "One head": f'attnscope show "{TEXT}" --head L2H1 --hide-special',
    "One token": f'attnscope show "{TEXT}" --token cat',
    "Which heads look from here to there": f'attnscope find "it -> cat" "{TEXT}"',
    "Which heads are alike": f'attnscope compare "{TEXT}"',
    "Through all layers": f'attnscope flow "{TEXT}"',
    "What each head adds to a logit": 'attnscope logits "The cat sat on the" -m own-causal --target mat',
}
"""The commands of the gallery."""


def build(out: Path) -> None:
    """Write the site. Raises ``mkdocs.exceptions.Abort`` for a link that leads nowhere."""
    from mkdocs.commands.build import build as render
    from mkdocs.config import load_config

    with TemporaryDirectory() as folder:
        pages = Path(folder)
        write_pages(pages)
        render(load_config(str(CONFIG), docs_dir=str(pages), site_dir=str(out.resolve()), strict=True))


def write_pages(pages: Path) -> None:
    """Every page of the site as Markdown, and the pictures in them."""
    for file in documents():
        text = LINK.sub(lambda found, file=file: _link(file, found), file.read_text("utf-8"))
        _write(pages / _place(file), text)
    shutil.copytree(ROOT / ".pictures", pages / "pictures")
    shutil.copy(WORKER, pages)
    for name, make in (("measures", measures), ("python", python), ("schemas", schemas)):
        _write(pages / f"{name}.md", "\n".join(make()))
    _write(pages / "gallery.md", "\n".join(gallery(pages)))


def documents() -> list[Path]:
    listed = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True)
    return [ROOT / name for name in listed.split()]


def _place(file: Path) -> Path:
    """Where a file of the project stands in the site."""
    place = file.relative_to(ROOT)
    if place == Path("README.md"):
        return Path("index.md")
    return Path(*(part.removeprefix(".") for part in place.parts))


def _link(file: Path, found: re.Match[str]) -> str:
    """A link between files as one between pages; a file that is no page keeps its name, and no link."""
    mark, label, target, anchor = found[1], found[2], found[3], found[4] or ""
    if "://" in target:
        return found[0]
    path = (file.parent / target).resolve()
    path = path / "README.md" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"{file.relative_to(ROOT)} links {target}, and there is none")
    if path.suffix not in (".md", ".png"):
        return label
    up = Path(*[".."] * (len(_place(file).parts) - 1))
    return f"{mark}[{label}]({(up / _place(path)).as_posix()}{anchor})"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def measures() -> Iterator[str]:
    """What each measure is, with its formula and the paper it comes from, as ``explain`` says it."""
    yield "# Measures\n\nWhat `attnscope explain NAME` says of each.\n"
    for name in MEASURES:
        yield f"## {name}\n\n```text\n{explain(name)}\n```\n"


def python() -> Iterator[str]:
    """The public face, from its docstrings."""
    yield "# Python\n"
    for name in attnscope.__all__:
        if name != "__version__":
            yield from _described(f"attnscope.{name}", getattr(attnscope, name), "##")
    yield "## What a run answers\n"
    for name, member in vars(Run).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield from _described(f"run.{name}", member, "###")


def _described(name: str, what: object, mark: str) -> Iterator[str]:
    yield f"{mark} `{name}`\n"
    if inspect.isfunction(what):
        parameters = inspect.signature(what).parameters.values()
        typed = ", ".join(str(each) for each in parameters if each.name != "self")
        yield f"```python\n{name}({typed})\n```\n"
    yield f"{inspect.getdoc(what)}\n"


def schemas() -> Iterator[str]:
    """What each command prints with ``--json``."""
    yield "# JSON\n\nWhat `attnscope schema COMMAND` prints.\n"
    for command in printed_records():
        shape = json.dumps(schema_of(command), indent=1, ensure_ascii=False)
        yield f"## {command}\n\n```json\n{shape}\n```\n"


def gallery(pages: Path) -> Iterator[str]:
    """Commands, each with what it draws."""
    (pages / "gallery").mkdir()
    yield "# Gallery\n"
    for number, (title, command) in enumerate(PICTURES.items()):
        run([*shlex.split(command), "-o", str(pages / "gallery" / f"{number}.png"), "-q"])
        yield f"## {title}\n\n```sh\n{command} -o picture.png\n```\n"
        yield f"![{title}](gallery/{number}.png)\n"


if __name__ == "__main__":
    build(Path(sys.argv[1]))
