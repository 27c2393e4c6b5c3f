"""A gallery to be looked at: heads of models of several sizes on texts of several lengths, as each output.

    python -m tests.tools.gallery FOLDER [--tokens 13,60] [--shapes 4x8,32x32]

Writes pictures, pages, and an ``index.html`` that shows each terminal, dark and light, and prints how long
each took. The models are tiny GPT-2 models with heads that attend to planted offsets, sharply, or loosely.
With Chromium, each page is photographed, too.
Pages compute every row exactly: of 8,000 tokens, 12 × 12 heads take three minutes on one core, and 32 × 32
(65 thousand million weights) ten on two; their terminal and PNG take two.
"""

import argparse
import html
import io
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from attnscope.models import Model, load
from attnscope.models.model import Limit
from attnscope.questions.layers import all_heads
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview, overview_answer
from attnscope.render.image import save_image
from attnscope.render.page import save_page
from attnscope.render.terminal import print_views
from tests.models import folders
from tests.render.page.browser import CHROMIUM, browser

TOKENS, SHAPES = (13, 60, 512, 8000), ((4, 8), (12, 12), (32, 32))  # layers × heads
TERMINALS = ((80, 24), (160, 48))
SIZE = 8  # of a head
SPEEDS = (1.6, 0.7, 0.2, 0.02)  # radians a token, by which a head knows offsets
OFFSETS = (0, 1, 1, 2, 7)  # 0 is the token itself


def model_of(folder: Path, layers: int, heads: int) -> Model:
    """A model of this shape: a third of its heads attend to an offset, the others sharply or loosely."""
    width, count = SIZE * heads, max(TOKENS)
    folders.gpt2(folder, n_embd=width, n_head=heads, n_layer=layers, n_positions=count)
    module = transformers.AutoModel.from_pretrained(folder)
    rng, turns = np.random.default_rng(0), torch.arange(count)[:, None] * torch.tensor(SPEEDS)
    with torch.no_grad():
        module.wte.weight.normal_(std=0.3)
        module.wpe.weight.zero_()
        module.wpe.weight[:, :SIZE] = torch.cat([turns.cos(), turns.sin()], 1)
        for block in module.h:
            block.attn.c_proj.weight.normal_(std=0.02 / heads)
            block.mlp.c_proj.weight.normal_(std=0.02 / heads)
            block.attn.c_attn.bias.zero_()
            block.ln_1.weight.fill_(1)
            block.ln_1.bias.zero_()
            for start in range(0, width, SIZE):
                plant_head(block.attn.c_attn.weight, slice(start, start + SIZE), width, rng)
    module.save_pretrained(folder)
    return load(str(folder))


def plant_head(weight: torch.Tensor, query: slice, width: int, rng: np.random.Generator) -> None:
    """Write one head's queries and keys into the weights [width, queries | keys | values]."""
    key = slice(query.start + width, query.stop + width)
    if rng.random() > 1 / 3:
        for columns in (query, key):
            weight[:, columns].normal_(std=rng.choice([0.03, 0.3]))
        return
    turn = torch.tensor(SPEEDS) * int(rng.choice(OFFSETS))
    cos, sin = turn.cos().diag(), turn.sin().diag()
    weight[:, query] = weight[:, key] = 0
    weight[:SIZE, query] = 3 * torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
    weight[:SIZE, key] = 3 * torch.eye(SIZE)


def draw(model: Model, tokens: int, folder: Path, name: str) -> Iterator[tuple[str, str, float]]:
    """Every output of one text: what it is, its HTML, and the seconds that it took."""
    text = (Path(__file__).parents[2] / "sample_inputs" / "article.txt").read_text("utf-8") * 4
    prepared = model.prepare(text, limit=Limit(tokens))
    start = time.perf_counter()
    result = overview(model, prepared, Selection())
    answer = overview_answer(result, f"attnscope show -f article.txt -m {name}")
    yield "pass", "", time.perf_counter() - start
    for width, height in TERMINALS:
        start = time.perf_counter()
        look = {"force_terminal": True, "color_system": "truecolor", "highlight": False}
        console = Console(file=io.StringIO(), record=True, width=width, height=height, **look)
        print_views(answer.views, console)
        shown = console.export_html(theme=DIMMED_MONOKAI, inline_styles=True, code_format="{code}")
        lines = shown.rstrip("\n").count("\n") + 1
        pre = "".join(f'<pre class="{theme}">{shown}</pre>' for theme in ("dark", "light"))
        yield f"{width} × {height}, {lines} lines", pre, time.perf_counter() - start
    start = time.perf_counter()
    save_image(answer.picture, folder / f"{name}.png")
    yield "PNG", f'<img src="{name}.png">', time.perf_counter() - start
    start = time.perf_counter()
    save_page(all_heads(model, prepared, Selection()), folder / f"{name}.html")
    size = (folder / f"{name}.html").stat().st_size / 1e6
    yield f"page, {size:,.1f} MB", photographs(folder, name), time.perf_counter() - start


def photographs(folder: Path, name: str) -> str:
    """A link to a page and, with Chromium, pictures of it."""
    shown = f'<p><a href="{name}.html">{name}.html</a></p>'
    if CHROMIUM is not None:
        with browser() as page:
            for theme in ("dark", "light"):
                page.open_anew(folder / f"{name}.html", dark=theme == "dark")
                page.until("overview.cells.length > 0")
                page.photograph(folder / f"{name}-{theme}.png")
                shown += f'<img src="{name}-{theme}.png">'
    return shown


STYLE = """body { font: 15px sans-serif; } img { max-width: 100%; border: 1px solid #999; }
pre { display: inline-block; font: 13px/1.15 monospace; padding: 8px; margin: 4px; vertical-align: top; }
.dark { background: #16161a; color: #ddd; }
.light { background: #fff; color: #222; border: 1px solid #999; }"""


def main() -> None:
    """Draw everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--shapes", default=",".join(f"{layers}x{heads}" for layers, heads in SHAPES))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for shape in asked.shapes.split(","):
        layers, heads = map(int, shape.split("x"))
        model = model_of(asked.folder / f"model-{shape}", layers, heads)
        for tokens in map(int, asked.tokens.split(",")):
            name = f"{shape}-{tokens}"
            parts.append(f"<h2>{layers} × {heads} heads, {tokens:,} tokens</h2>")
            for what, shown, seconds in draw(model, tokens, asked.folder, name):
                print(f"{name}  {what}  {seconds:.1f} s", flush=True)
                parts.append(f"<h3>{html.escape(what)}</h3>{shown}" if shown else "")
            index = f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>" + "\n".join(parts)
            (asked.folder / "index.html").write_text(index, "utf-8")


if __name__ == "__main__":
    main()
