"""The answer of each command: every option has its effect; tests/questions checks the numbers."""

import shlex

import pytest

from tests.cli.conftest import WORDS

STANDS_OUT = "no head shows a clear pattern on this text"
"""Of random weights."""

ANSWERED = {
    "--version": "attnscope 0.1.0 (torch ",
    # show
    "show 'The cat sat'": "too few tokens to name patterns: try a sentence",
    "show 'Yes, I (he) do!'": "own · “Yes, I (he) do!” · ",
    "show 猫は座った。": "own · “猫は座った。” · ",
    "show TEXT --head L0H2,1.5,L3H0": ("L0H2", "L1H5"),
    "show TEXT --head L0H0 --words --hide-special": "special tokens hidden: they receive",
    "show TEXT --zoom 4-9": "only tokens 4-9: other tokens receive",
    "show BOOK --truncate --layer 0": (
        "own · “cat cat cat cat",
        "cut: the first 512 of 2,002 tokens are shown",
    ),
    "show TEXT -m ./new": "untrained",
    "show TEXT -m ./new --head L0H0": "untrained",
    "show TEXT -m ./new --token cat": "untrained",
    "show TEXT --head L2H0 --neurons 'it -> cat'": "L2H0 · it 8 → cat 2 · own",
    "show TEXT --head L2H0 --neurons 'it -> cat' -o made/score.svg": "saved made/score.svg",
    "show --repeat-random 8 -m own-causal --loss": "mean",
    "show 'The {A} saw the {B}' --prompts names.tsv -m own-causal --head L1H0": "of “The {A} saw the {B}”",
    "show TEXT -o made/heads.html": "saved made/heads.html",
    "show TEXT -o made/heads.npz": "saved made/heads.npz",
    "show TEXT --second-text 'It slept.' -m ./t5 -o made/all.png": "saved made/all.png",
    "show --from negative.npz -o made/odd.png": "saved made/odd.png",
    "show --from heads.npz -o made/again.html": "saved made/again.html",
    "show --from heads.npz --labels labels.txt --head L0H0": "hip knee foot",
    "show --from a.trace": "attnscope show --from a.trace --head L0H7",
    "show TEXT --relative DOG --head L1H5": (
        "relative to “The dog sat",
        "log₂ of weight over neutral weight",
    ),
    "show TEXT --relative DOG --token it": "weight over neutral weight",
    "show TEXT --relative DOG -o made/relative.html": "saved made/relative.html",
    "show TEXT --weighting norm": f"attnscope show --weighting norm '{WORDS['TEXT']}' --head",
    "show --image a.png -m ./vit": ("2 layers × 2 heads · 17 tokens", STANDS_OUT),
    "show --image a.png -m ./vit --token 0,3 -o made/patch.pdf": "saved made/patch.pdf",
    "show 'a tired cat' --image a.png -m ./clip": ("encoder attention", "decoder attention"),
    "show 'a tired cat' --image a.png -m ./clip --kind decoder --token cat": "cat (token 3) attends to",
    "show --audio tone.wav -m ./hubert": STANDS_OUT,
    "show --audio tone.wav -m ./hubert --token '0.32 s' --head L0H1": "0.32 s (token 16) attends to",
    "show --audio long.wav -m ./hubert --from-second 1 --token '1.32 s'": "1.32 s (token 16) attends to",
    "show 'The cat.' --audio tone.wav -m ./whisper --head 'cross L0H0'": "0.00 s 0.40 s 0.80 s",
    "show --audio tone.wav -m ./whisper --generate 5 --kind cross": "<|transcribe|> <|notimestamps|> │ ",
    "show 'The cat sat on the mat' -m own-causal --generate 5": (
        "3 layers × 4 heads · 12 tokens",
        "generated 5 tokens, greedy, from token 7 on: ",
    ),
    "show TEXT -m own-causal --generate 2 --temperature 1.5 --seed 18446744073709551615 --head L0H0": (
        "temperature 1.5, seed 18446744073709551615"
    ),
    "show TEXT --save-trace made/b.trace": "attnscope show --from made/b.trace --head L0H7",
    # stats
    "explain": "induction",
    "explain induction": "Olsson et al. 2022",
    "explain importance": "an output head",
    "explain ablation": "L without the head",
    "explain norm": ("Kobayashi", "W_O"),
    "explain scale": "--scale (an option of show, browse, flow, export): Brightest colour",
    "explain 'feed-forward 0'": "the part of a layer that works on each token alone",
    "explain rollout": "rollout (flow --method rollout): ",
    "explain alti": "alti (flow --method alti): ",
    "stats TEXT --where offset=-2>0.9": "none of the 32 heads meets the conditions",
    "stats TEXT --map previous": "mean",
    "stats TEXT --layer 0-1,3 --top 1": "1 of 24 heads",
    "stats --texts bad.txt --top 1": (
        "attnscope: skipped line 2: byte 0 is not UTF-8 text",
        "1 text could not be read: line 2",
    ),
    "stats TEXT --map entropy -o made/map.png": "saved made/map.png",
    **{
        f"stats TEXT --pooled made/maps{suffix} --top 1": f"saved made/maps{suffix}"
        for suffix in (".npz", ".safetensors", ".json", ".csv", ".html")
    },
    "stats TEXT -m own-causal --faithful --top 2 --target mat": ("and 11 more", "'mat'"),
    "stats TEXT -m own-causal --faithful -o made/ways.svg": "saved made/ways.svg",
    # compare
    "compare TEXT --csv": "one,other,",
    "compare L0H1 L2H3 -f texts.txt --line 1": "L0H1 − L2H3",
    "compare TEXT L0H1 L2H3": ("L0H1 − L2H3", "largest differences"),
    "compare TEXT --with-text OTHER": "… --head L1H2",
    "compare TEXT --with-text OTHER --head L1H0": "L1H0 · own · the second text minus the first",
    "compare TEXT --with-model own": "Heads that drifted most",
    "compare TEXT --with-model MINILM": "L2H1 L0H2",
    "compare --texts texts.txt": ("mean over 2 texts", "±"),
    "compare L1H0 --composition -m own-causal": (
        "what feeds the keys of L1H0 · K-composition",
        "L0H0 keys of L1H0 0.116 0.088 ±0.002",
    ),
    "compare --composition -m own-causal --csv": "0.088",
    # find, spans, flow
    "find 'it <-> cat' TEXT -o made/map.png --dpi 50": "saved made/map.png",
    "find '* -> a' MANY --top 1": "a is at 30 places (1, 3, 5, 7, 9, 11, ...): summed",
    "find 'it -> cat' TEXT --weighting norm": "attnscope show --weighting norm --head L",
    "find 'sat -> cat' 'The cat sat.' --second-text 'A cat sat.' -m ./t5 --kind cross": "--kind cross",
    "find --gold broken.conllu": (
        "attnscope: skipped line 1: line 1: it has 3 columns, not 10",
        "1 text could not be read: line 1",
    ),
    "find --gold pairs.txt --alignments links.txt -m ./t5": ("AER", "find its source best"),
    "find --gold pairs.txt --alignments links.txt --rows predicting -m ./t5": "aligned predicting L",
    "rule L0H7 --texts texts.txt": ("+1", "to hold it: attnscope check"),
    "explain rule(-1)": "[max_j A[i, j] > 0.3 at a key j that is -1]",
    "examples L1H3 --texts texts.txt": (
        "over all texts: attends to the previous token",
        "»the token that attends«, [key and its weight]; score: largest weight",
        "all rows by score in ten equal parts, and a random row of each",
        "most 1 earlier, ",
        "nearest heads, by the weight",
    ),
    "examples L1H3 --texts texts.txt --by '* -> -1' --top 1": "; score: * -> -1",
    "atlas --texts texts.txt -o made/atlas": "saved 37 files in made/atlas: open made/atlas/index.html",
    "examples --texts texts.txt": "strongest row → key",
    "spans TWO --head L1H3": "L1H3 · encoder attention",
    "spans TWO -m own-causal": "average over 12 heads · decoder attention · 4 parts",
    "spans TWO --parts paragraph": "the whole text is one part",
    "spans TWO --parts line": "the whole text is one part",
    "spans '[[fact: A cat.]] Rain. [[question: Who?]]' --parts marks --pair 'question -> fact'": (
        "question -> fact · encoder attention"
    ),
    "spans TWO --pair '1 -> 2' -o made/parts.png --dpi 40": "saved made/parts.png",
    "spans 'The king said that he would' -m own-causal --generate 5": "written",
    "flow TEXT --layer 1": "rollout through layers 0-1 ·",
    "flow TEXT --layer 0-2": (
        "rollout layer by layer · own",
        "one map per layer; rows draw on columns; 13 ×",
    ),
    "flow TEXT --layer 0-3 -o made/layers.png --dpi 50": "saved made/layers.png",
    **{
        f"flow TEXT --token it --method {method}": "it (token 8) draws on"
        for method in ("rollout", "flow", "relevance", "alti")
    },
    "flow --image a.png -m ./vit --token CLS": "[CLS] draws on",
    "flow --image a.png -m ./vit --token CLS -o made/lit.png": "saved made/lit.png",
    # why, cut, info, align, check, export, browse
    "why 'it -> cat' TEXT --head L3H1": ("why L3H1 attends from it 8 to cat 2", "query times key"),
    "why 'it -> cat' TEXT --head L3H1 --depth 2": "it wrote the",
    "why 'it -> cat' TEXT --head L3H1 --against 'it -> sat'": "a value less the same in it -> sat",
    "why '* -> -1' TEXT --head L3H1 --top 1": ("means of 12 cells", "899 other terms"),
    "why 'saw -> {A}' 'The {A} saw the {B}' --prompts names.tsv --head L1H0 --top 2": (
        "why L1H0 attends from saw to {A}",
        "1 prompt of “The {A} saw the {B}”",
    ),
    "why 'it -> cat' TEXT --head L3H1 --csv": "layer,head,query,key,query_part,key_part,value,excess",
    "why 'it -> cat' TEXT --head L3H1 --depth 2 -o made/why.html": "saved made/why.html",
    "cut 'cat -> -1' TEXT -m own-causal --how mean --texts texts.jsonl": (
        "set to its mean over 1 text)",
        "attnscope: skipped line 2: no field 'text'",
    ),
    "info MINILM": "0-5 encoder",
    "info own": "512 positions",
    "info --defaults": "set in",
    "info ./t5": ("T5Model", "encoder: 2 layers", "decoder: 2 layers", "cross: 2 layers", " parameters"),
    "info ./vit --image a.png": "right",
    "info own --audit": "all mixing between tokens goes through the attention",
    "info ./gpt2 --copying": "own logit rises most",
    "align tone.wav TEXT -m ./whisper --rank": (
        "right",
        "times of the words: by the model's alignment heads",
    ),
    "align tone.wav -m ./whisper --generate 4": "generated 4 tokens, greedy, from token 4 on",
    "check 'L2H1.previous > 0.8' 'count(previous > 0.5) >= 2' TEXT": (
        "ok L2H1.previous > 0.8",
        "ok count(previous > 0.5) >= 2",
    ),
    "browse --help": "pip install 'attnscope[browse]'",
    "export TEXT -o made/some --layer 1-2 --head 0 --format svg --force": "saved 5 files",
    "logits 'The {A} saw' --prompts names.tsv -m own-causal --by layer --target {B}": "mean of 1 prompt",
    "export --from heads.npz -o made/out --layer 3 --head 0 --force": "saved 3 files and manifest.json in",
}


@pytest.mark.parametrize(("typed", "sentences"), ANSWERED.items(), ids=ANSWERED)
def test_command_prints_the_expected_words(run, place, monkeypatch, typed, sentences):
    monkeypatch.chdir(place)
    ran = run(*(WORDS.get(word, word) for word in shlex.split(typed)))
    said = " ".join((ran.out + ran.err).split())
    for sentence in (sentences,) if isinstance(sentences, str) else sentences:
        assert " ".join(sentence.split()) in said
    assert (ran.code, "\x1b" in ran.out) == (0, False)
    lines = ran.out.splitlines()
    assert [line for line in lines if line != line.rstrip() and "--help" not in typed] == []
    # a line of data is as long as its numbers, which other processors round to other digits
    wide = typed.startswith("explain") or {"--csv", "--json"} & {*typed.split()}
    assert wide or all(len(line) <= 80 or "attnscope " in line for line in lines)
