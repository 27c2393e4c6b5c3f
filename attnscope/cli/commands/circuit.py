"""``attnscope circuit``: the heads and edges that a prediction needs, as a graph."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from attnscope.cli import options
from attnscope.cli.command import MOST_USED, Group, command
from attnscope.cli.commands.logits import ScoreOptions
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import spinner
from attnscope.cli.source import load_model, read_file


class PairsOptions(Group):
    """Texts that differ in what decides the prediction, and how much of the difference to keep."""

    panel = MOST_USED
    pairs: Annotated[Path, Argument(help="Pairs, a line each: text, other text, target, other word.")]
    faithfulness: Annotated[
        float, Option(help="The share of the difference that it has to bring back.", min=0.01, max=1.0)
    ] = 0.8


class CircuitOutput(options.TableOutput):
    """Where the graph goes."""

    suffixes = (*options.PICTURES, ".html", ".json")


@command
def circuit(
    contrast: PairsOptions,
    score: ScoreOptions,
    output: CircuitOutput,
    picture: options.SavedOptions,
    model: options.ModelOptions,
) -> None:
    """Find the smallest circuit that a prediction needs.

    Edges between heads are scored by edge attribution patching with integrated gradients (Syed et al. 2023,
    Hanna et al. 2024) and pruned to the fewest that reach --faithfulness: the share of the score's difference
    between the texts that these edges alone bring back. Completeness is the share that is lost without the
    circuit's heads. Both texts of a pair need the same number of tokens.

    Examples:

    attnscope circuit sample_inputs/repeats.tsv -m own-causal
    attnscope circuit sample_inputs/repeats.tsv -m own-causal --faithfulness 0.95
    attnscope circuit sample_inputs/repeats.tsv -m own-causal -o circuit.html
    """
    from attnscope.questions.circuit import circuit_answer, find_circuit
    from attnscope.questions.head import one_head
    from attnscope.questions.patching import read_pairs

    table = read_file(contrast.pairs)
    loaded = load_model(model, predicting=True)
    pairs = read_pairs(table, loaded.prepare, score.target, score.against)
    with spinner(f"{loaded.title} · {len(pairs):,} pairs"):
        result = find_circuit(loaded, pairs, contrast.faithfulness)
        paged = result.heads if output.out is not None and output.out.suffix.lower() == ".html" else ()
        maps = {each.head: one_head(loaded, pairs[0].clean, each.head).heatmap for each in paged}
    about = loaded, contrast.pairs, *(text for pair in pairs for text in (pair.clean, pair.corrupt))
    deliver("circuit", circuit_answer(result, maps), output, picture, None, about)
