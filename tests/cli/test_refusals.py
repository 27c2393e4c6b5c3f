"""What each command refuses: it prints no answer, writes no file, ends with 2, and says why in a sentence."""

import os
import shlex

import numpy as np
import pytest

from attnscope.models import load
from attnscope.models.keeping import keep_trace
from attnscope.storage.trace import write_trace
from tests.models import folders, images, speech
from tests.questions.gold import treebank

WORDS = {
    "TEXT": "The cat sat on the mat because it was tired.",
    "OTHER": "The dog sat on the very old mat because it was tired.",
    "DOG": "The dog sat on the mat because it was tired.",
    "BOOK": "cat " * 2000,
    "MINILM": folders.minilm(),
}
"""What stands for itself in the commands below."""

LAYERS = "this model has layers 0-3, heads 0-7"
ONE_HEAD = "only valid with one head"
TRACE = "is a trace and predicts nothing: give the model itself"

REFUSED = {
    "show": "give a text",
    "show ''": "the text is empty: give at least one word",
    "show TEXT -f file": "not both",
    "show -f nowhere.txt": "no such file: nowhere.txt",
    "show TEXT -m ./nowhere": "no model folder ./nowhere",
    "show TEXT --nonsense": "no option --nonsense",
    "show TEXT --head L9H0": f"no head L9H0: {LAYERS}",
    "show TEXT --head L0H99": f"no head L0H99: {LAYERS}",
    "show TEXT --head 3": "which layer",
    "show TEXT --head x": "'x' is not a head",
    "show TEXT --layer 9": f"no layer 9: {LAYERS}",
    "show TEXT --layer -1": "write numbers and ranges",
    "show TEXT --layer 3-1": "write numbers and ranges",
    "show TEXT --kind cross": "no cross-attention: this model has encoder attention",
    "show TEXT --token dog": "no token 'dog': the text has the tokens 0-12",
    "show TEXT --scale log": "'log' is not one of",
    "show TEXT --cmap embre": "no colour map 'embre': did you mean 'ember'?",
    "show TEXT --dtype float8": "no dtype 'float8': there are auto, float32, float16, bfloat16",
    "show TEXT --latex": "this answer is not a table",
    "show TEXT -o nowhere/heads.png": "nowhere/heads.png cannot be written: there is no folder nowhere",
    "show TEXT -o heads.gif": "heads.gif cannot be written: its name must end in .png, .svg, .pdf, .html",
    "show TEXT -o a.gif": "animated pictures were retired: export --format png",
    "show TEXT --head 0.0 -o a.npz": "a .npz file holds whole layers: leave out --head",
    "show BOOK": "the text has 2,002 tokens and own reads at most 512: shorten it, or pass --truncate",
    "show TEXT --head L0H2,L1H5 --token cat": f"--token: {ONE_HEAD}",
    "show TEXT --head L0H2,L1H5 --pair 'cat -> sat'": f"--pair: {ONE_HEAD}",
    "show TEXT --head L0H2,L1H5 --loss": f"--loss: {ONE_HEAD}",
    "show TEXT --zoom 4-5200": "tokens are numbered 0-",
    "show TEXT --zoom 4-9 --token cat": "not with --token",
    "show TEXT --head L2H0 --neurons": "name two tokens: --pair",
    "show TEXT --pair 'it -> cat'": "only valid with --neurons",
    "show TEXT --pair 'it -> cat' --neurons": "name the head: --head L2H0",
    "show TEXT --head L2H0 --pair 'it -> cat' --neurons --token cat": "not valid with --neurons",
    "show TEXT --head L2H0 --pair 'it -> cat' --neurons --words": "no --words",
    "show TEXT --head L2H0 --pair 'it -> cat' --neurons --weigh norm": "which shows the softmax's scores",
    "show TEXT --head L2H0 --pair 'it -> cat' --neurons -o a.npz": "its name must end in .png",
    "show TEXT -m own-causal --head L1H1 --pair 'cat -> sat' --neurons": (
        "cat 2 cannot look at sat 3: the mask hides it"
    ),
    "show TEXT --head L1H1 --pair 'cat sat' --neurons": "write two tokens of the text, such as",
    "show TEXT --head L1H1 --pair 'sat -> dog' --neurons": "no token 'dog': the text has",
    "show TEXT --head L1H9 --pair 'sat -> cat' --neurons": f"no head L1H9: {LAYERS}",
    "show TEXT --head L7H1 --pair 'sat -> cat' --neurons": f"no head L7H1: {LAYERS}",
    "show --repeat-random 8 -m own-causal --loss --token 1": "--loss",
    "show --repeat-random 8 -m own-causal --loss -o all.png": "--loss",
    "show 'The {A}' --prompts names.tsv -m own-causal": "averages one head",
    "show 'The {A}' --prompts names.tsv -m own-causal --head L1H0 --loss": "averages one head",
    "show 'The {A}' --prompts names.tsv -m own-causal --head L1H0 --token 1": "averages one head",
    "show 'The {A}' --prompts names.tsv -m own-causal --head L1H0 --words": "averages one head",
    "show TEXT --min-weight 0.1": "add --head, or -o PAGE.html",
    "show TEXT --min-weight 0.1 --token cat": "add --head, or -o PAGE.html",
    "show TEXT --min-weight 0.1 --token cat --head L0H0": "add --head, or -o PAGE.html",
    "show TEXT --min-weight 0.1 -o all.png": "add --head, or -o PAGE.html",
    "show TEXT --min-weight 0.1 -o all.npz": "add --head, or -o PAGE.html",
    "show TEXT --target mat": "only valid with --weigh gradient",
    "show TEXT L1H3": "L1H3 is a head, not a second text: type --head L1H3",
    "spans TEXT L1H3": "L1H3 is a head, not a second text: type --head L1H3",
    "flow TEXT L1H3": "L1H3 is a head, not a second text: this command shows all heads",
    "show The cat sat": "quote a text of several words",
    # what a model writes, chats
    "show TEXT --generate 3": "own-causal does",
    "show TEXT --generate 3 -m MINILM": "has no language-model head",
    "show TEXT --generate 0": "--generate",
    "show TEXT --temperature 1": "--generate",
    "show TEXT --generate 3 --temperature -1": "--temperature",
    "show TEXT -m own-causal --generate 2 --temperature 1 --seed 18446744073709551616": (
        "write a number up to 18,446,744,073,709,551,615"
    ),
    "show TEXT --chat": "has no chat format: leave out --chat",
    "show TEXT --chat -m ./gpt2": "has no chat format: leave out --chat",
    "show TEXT --system 'Be kind.'": "--chat",
    "show TEXT 'second text' --chat": "--chat",
    # files and traces in the place of a model
    "show --from heads.npz TEXT": "leave out the text and the model",
    "show --from heads.npz -m own": "leave out the text and the model",
    "show --from heads.npz --file x": "leave out the text and the model",
    "show --from heads.npz --chat": "leave out the text and the model",
    "show --from heads.npz --generate 3": "leave out the text and the model",
    "show --from heads.npz --device cpu": "leave out the text and the model",
    "show --from heads.npz --head L9H0": "layers 0-3, heads 0-7",
    "show --from negative.npz -o a.html": (
        "a page shows weights from 0 up, and there are negative ones"
    ),
    "show TEXT --labels names.tsv": "only valid with --inputs or --from",
    "compare --from heads.npz --with-model own": "a file has one text and no model",
    "compare --from heads.npz --with-text own": "a file has one text and no model",
    "compare --from a.trace --with-text OTHER": "compare it with --with-trace",
    "compare --from a.trace --with-model own": "compare it with --with-trace",
    "ablate --from a.trace --head L0H1": TRACE,
    "ablate --from a.trace --importance": TRACE,
    "show TEXT -m nowhere/nothing --keep a.npz": "the name of a trace ends in .trace",
    "show TEXT -m nowhere/nothing --keep no/a.trace": "there is no folder",
    "stats --texts texts.txt --keep b.trace": "give a text or --texts, not both",
    "spans --from a.trace --by role": "holds no chat",
    "show --from a.trace --weigh norm": "a file has no values",
    "show TEXT --keep b.trace --weigh norm": "a file has no values",
    "compare TEXT --with-trace a.trace --weigh norm": "no values to weigh by",
    # stats
    "stats TEXT --where entropi<1": "no measure 'entropi': did you mean 'entropy'?",
    "stats TEXT --where entropy": "cannot read 'entropy': write conditions like",
    "stats TEXT --where entropy<one": "'one' is no number",
    "stats TEXT --where entropy=1": "compare a figure with <=, >=, <, >",
    "stats TEXT --where role=leader": "write role=NAME or role!=NAME, of previous",
    """stats TEXT --where "__import__('os').getcwd()<1" """: "cannot read",
    "stats TEXT --sort sise": "no measure 'sise'",
    "stats TEXT --sort [MASK]": "no head has a figure of [MASK]: [MASK] is taken over rows of texts that",
    "stats TEXT --where [MASK]>0.1": "no head has a figure of [MASK]",
    "stats TEXT --where 'role=none and [MASK]<2'": "no head has a figure of [MASK]",
    "stats TEXT --map segment": "segment cannot be drawn: ",
    "stats TEXT --layer 9": "no layer 9: this model has layers 0-3",
    "stats TEXT --head L9H9": "no head L9H9: there are L0H0 to L3H7",
    "stats TEXT --pooled maps.png -m no-such": "maps.png cannot be written: its name must end in .html, .npz",
    "stats TEXT --pooled nowhere/maps.npz -m no-such": "there is no folder nowhere",
    "stats --texts texts.txt --pooled maps.npz -m no-such": "only valid with one text, not with --texts",
    "stats TEXT --by-position entropy --where entropy<1": "a fixed order",
    "stats TEXT --by-position entropy --sort entropy": "a fixed order",
    "stats TEXT -o x.png": "--by-position MEASURE",
    "stats TEXT --texts texts.txt": "give a text or --texts, not both",
    "stats --line 2 --texts texts.txt": "give a text or --texts, not both",
    "stats --file b.txt --texts texts.txt": "give a text or --texts, not both",
    "stats --image cat.png --texts texts.txt": "give a text or --texts, not both",
    "stats TEXT --limit 3": "--limit goes with --texts",
    "stats TEXT --strict": "--strict goes with --texts",
    "stats TEXT --checkpoint x.json": "--checkpoint goes with --texts",
    "stats TEXT --jsonl": "--jsonl",
    "stats --texts texts.txt --csv --jsonl": "--jsonl",
    "stats TEXT --faithful --csv": "--layer, --from",
    "stats TEXT -m own-causal --faithful --layer 9": "layers 0-2",
    # compare
    "compare": "give a text",
    "compare TEXT L0H1": "name two heads",
    "compare TEXT L0H1 L1H1 L2H1": "name two heads",
    "compare TEXT L0H1 first": "'first' is not a head",
    "compare TEXT L0H1 L1H1 --layer 2": "name their layers",
    "compare TEXT L0H1 L9H9": "no head L9H9: this model has layers 0-3",
    "compare TEXT --head 8": f"no head 8: {LAYERS}",
    "compare TEXT --head L1H1": "one head alone",
    "compare TEXT --layer 9": f"no layer 9: {LAYERS}",
    "compare TEXT L0H1 L0H8": "no head L0H8",
    "compare TEXT --kind cross": "no cross-attention: this model has encoder attention",
    "compare TEXT --map entropy": "compare --map was retired: track FOLDER OTHER",
    "compare TEXT --cmap rainbough": "no colour map 'rainbough'",
    "compare TEXT -o heads.html": "its name must end in .png, .svg, .pdf, .npz",
    "compare TEXT OTHER": "--with-text 'The dog sat",
    "compare TEXT --with-text 'Nobody knows why'": "no token in common: one begins 'The cat sat",
    "compare TEXT --with-text OTHER --head 3": "which layer?",
    "compare TEXT --with-text OTHER --head L7H1": "no head L7H1",
    "compare TEXT --with-text OTHER --kind cross": "no cross-attention",
    "compare TEXT --with-text OTHER --with-model own": "choose one of",
    "compare TEXT --with-model own-causal": "no kind of attention in common: own has encoder attention",
    "compare TEXT --with-model no-such/folder/at-all": "no model folder",
    "compare --texts texts.txt --with-text OTHER": "take one text",
    "compare --texts texts.txt --image cat.png": "give a text or --texts, not both",
    "compare --texts bad.txt": "line 2: byte 0 is not UTF-8 text",
    "compare --texts empty.txt": "holds no text",
    "compare L1H0 L2H0 --composition -m own-causal": "name one head",
    "compare L1H0 --composition --weigh norm -m own-causal": "not valid with --composition",
    "compare --composition -o map.png -m own-causal": "name the head",
    # check
    "check 'L2H1.previous > 0.8'": "give --texts CORPUS, --text or --file",
    "check --text a": "give a claim, --save or --against",
    "check 'L0H0.self > 0' --text a --texts b.txt": "give a text or --texts, not both",
    "check 'L0H0.self > 0' --image cat.png --texts b.txt": "give a text or --texts, not both",
    "check 'L0H0.self > 0' --text a --strict": "--strict goes with --texts",
    "check 'L9H0.self > 0' --text a": "no head L9H0: there are L0H0 to L3H7",
    # find, spans, flow
    "find TEXT": "->",
    "find 'it -> cat'": "give a text",
    "find 'it -> cat' TEXT OTHER": "text",
    "find 'it -> dog' TEXT": "no 'dog' among the keys: they read [CLS], The, cat",
    "find 'it -> catt' TEXT": "no 'catt' among the keys: did you mean 'cat'? they read [CLS], The, cat",
    "find 'it -> cat#3' TEXT": "no 'cat#3' among the keys: cat stands at",
    "find 'it -> cat#0' TEXT": "no 'cat#0' among the keys: the first is cat#1",
    "find '400 -> cat' TEXT": "no token 400 among the queries, which are 0 to 12",
    "find 'it -> +400' TEXT": "no token stands 400 behind 'it'",
    "find 'it -> -40' TEXT": "no token stands 40 before 'it'",
    "find '+400 -> it' TEXT": "no token stands 400 behind 'it'",
    "find '/a{1,99999999999}/ -> *' TEXT": "too large",
    "find '/[/ -> *' TEXT": "not a regular expression",
    "find --held-out 'it -> cat' TEXT": "--gold",
    "find --gold bank.conllu 'it -> cat'": "--gold",
    "find --gold bank.conllu -f x": "--gold",
    "find --gold bank.conllu -o x.png": "--gold",
    "spans TEXT --head L1H9": "no head L1H9: this model has",
    "spans '[[fact: A cat.]] Rain.' --by marks --pair 'answer -> fact'": (
        "no part 'answer': the text has the parts [CLS], fact, rest 2"
    ),
    "spans TEXT --by modality": "the input is text only",
    "spans --image cat.png": "parts are cut out of a plain text",
    "flow TEXT --layer 0-2 --token it": "name one layer",
    "flow TEXT --target mat": "only valid with --method relevance",
    "flow TEXT --token dog": "no token 'dog'",
    "flow TEXT -o flow.html": "a page is of heads",
    "flow TEXT --faithful --token cat": "--layer, --from or --csv",
    "flow TEXT --faithful -o a.html": "holds whole layers",
    "flow cat -m own-causal --faithful": "fewer than two tokens",
    # ablate, cut, patch, circuit, logits
    "ablate TEXT --head L9H0": f"no head L9H0: {LAYERS}",
    "ablate TEXT --head L1H0 -m MINILM": "it has no language-model head",
    "ablate TEXT --importance -m MINILM": "it has no language-model head",
    "ablate TEXT --head L1H0 -o x.png": "--head is printed",
    "ablate TEXT --mean": "a mean is taken over a corpus: add --texts",
    "ablate TEXT --target mat --importance": "a prediction is of one text",
    "cut TEXT": "name an edge",
    "cut 'on -> cat' TEXT OTHER": "give one text",
    "cut 'on -> cat' TEXT --head H3": "is not a head",
    "cut 'on -> cat' TEXT --how mean": "add --texts",
    "cut 'on -> cat' TEXT --texts corpus.txt": "only valid with --how mean",
    "cut 'dog -> cat' TEXT -m own-causal": "no 'dog' among the queries",
    "cut 'cat -> mat' TEXT -m own-causal": "those keys are masked",
    "cut '0 -> 0' TEXT -m own-causal": "pass --how zero",
    "cut 'mat -> cat' TEXT -m own-causal --head L9H0": "no head L9H0: this model has layers 0-2",
    "cut 'mat -> cat' TEXT -m own-causal --target qqqqq": "no token 'qqqqq'",
    "cut 'mat -> cat' TEXT -m own-causal --target xylophone": "name one token",
    "cut 'mat -> cat' TEXT -m own-causal --how mean --texts one.txt": "no text of the corpus has mat -> cat",
    "patch TEXT": "give the other text",
    "patch TEXT --with-text 'The dog sat' -m own-causal": "needs the same number",
    "patch TEXT --with-text TEXT --fast --what q": "--fast estimates",
    "patch TEXT --with-text OTHER --exact": "only valid with --fast",
    "patch TEXT --with-text OTHER --pairs pairs.tsv": "the file has the texts",
    "patch --pairs pairs.tsv --prompts names.tsv": "give one of both",
    "patch TEXT --with-text OTHER --to L1H1:q --what k": "--to says what is patched",
    "patch TEXT --with-text OTHER --from L0H1 --to L2H3:q": "now named by --head",
    "patch TEXT --with-text OTHER --by token --head L0H1": "is of every layer",
    "patch TEXT --with-text OTHER --to L2H3:w": "no part 'w' of a head",
    "patch TEXT --with-text DOG -m own-causal --to L9H1:q": "L9H1 is 0 attention calls",
    "patch TEXT --with-text DOG -m own-causal --to L0H1:q": "none of these heads comes before L0H1:q",
    "patch TEXT --with-text TEXT -m own-causal": "the same score",
    "patch TEXT --with-text OTHER -m own-causal": "differ in their number of tokens",
    "circuit texts.txt": "two texts with a tab between them",
    "circuit pairs.tsv -o graph.npz": "must end in .png, .svg, .pdf, .html",
    "circuit pairs.tsv --keep 0": "0.01<=x<=1.0",
    "circuit pairs.tsv --target xyzzyx -m own-causal": "no token 'xyzzyx'",
    "logits TEXT -m own-causal -o a.npz": "must end in .png, .svg, .pdf",
    "logits TEXT -m own-causal --layer 1": "only valid with --head",
    "logits TEXT -m own-causal --by layer --head L1H2": "layer prints a table",
    "logits TEXT -m own-causal --by layer -o lens.png": "layer prints a table",
    "logits 'The {A}' --prompts names.tsv -m own-causal --head L1H2": "--prompts",
    # cachecost, loss, track
    "cachecost -m own-causal": "give the texts that the loss is measured on",
    "cachecost -m own-causal --texts texts.txt --recent 500": "a window of 504 tokens holds all of the",
    "cachecost -m own --texts texts.txt": "own predicts masked tokens and keeps no cache: choose a causal",
    "cachecost -m ./short --texts texts.txt": "line 2: the text has 22 tokens and ./short reads at most 12",
    "cachecost -m ./t5 --texts texts.txt --recent 6": "is not causal: choose a causal model of text",
    "cachecost -m own-causal --texts texts.txt --keep half": "write numbers from 0 to 1: 0.25,0.5",
    "cachecost -m own-causal --texts texts.txt --needle 1.5": "write numbers from 0 to 1: 0.25,0.5",
    "cachecost -m own-causal --texts texts.txt -o heads.txt": "must end in .png, .svg, .pdf, .tsv",
    "cachecost -m own-causal --texts no.txt": "no.txt",
    "cachecost -m own-causal --texts texts.txt --recent 2 --needle 0.5": "a needle is 16 tokens, and the",
    "cachecost -m own-causal --texts texts.jsonl": "line 2: no field 'text': it has words",
    "loss MINILM texts.txt": "predicts no tokens",
    "loss ./gpt2 one.txt": "there is no token to predict in the files",
    "track": "give the texts",
    "track --texts texts.txt": "give folders, or -m and --revisions",
    "track x --texts texts.txt --watch": "give --jsonl FILE",
    "track --texts texts.txt --revisions a,b": "name the model with -m",
    "track x --texts texts.txt --measure entropie": "entropy",
    "track 'nowhere-*' --texts texts.txt": "no checkpoint matches nowhere-*",
    "track empty --texts texts.txt": "no checkpoint matches empty/*-[0-9]*",
    # names that are nearly those of something
    "show TEXT -m own-casual --offline": "did you mean 'own-causal'?",
    "compare TEXT --with-model own-casual --offline": "did you mean 'own-causal'?",
    "loss own_causal one.txt --offline": "did you mean 'own-causal'?",
    "show TEXT --kind encdoer": "did you mean 'encoder'?",
    "show TEXT --kind decoder": "no decoder attention: this model has encoder attention",
    "show TEXT --token trired": "did you mean 'tired'?",
    "stats TEXT --sort entrpy": "did you mean 'entropy'?",
    "stats TEXT --sort kind": "no measure 'kind': there are entropy",
    "stats TEXT --map entrpy": "did you mean 'entropy'?",
    "stats TEXT --where role=previos": "did you mean 'previous'?",
    "stats --explain entropi": "did you mean 'entropy'?",
    "stats --explain positonal": "did you mean 'positional'?",
    "check 'any.frist > 0.5' --text TEXT": "did you mean 'first'?",
    "check 'L2H1.role = previos' --text TEXT": "did you mean 'previous'?",
    # export, info, schema
    "export TEXT -o out --format png,bmp": "no format 'bmp': there are png, svg, pdf, npz, safetensors",
    "export TEXT -o out --format png,gif": "no format 'gif': there are png, svg, pdf, npz",
    "export TEXT -o out --format GIF": "animated pictures were retired: export --format png",
    "export TEXT -o out --format apng": "animated pictures were retired: export --format png",
    "export TEXT -o out --token cat --format npz": "a token has pictures alone: --format png,svg,pdf",
    "export TEXT -o out --keep-mass 0.6": "only valid with --token",
    "export TEXT -o out --token dog": "no token 'dog'",
    "export TEXT -o out --cmap rainbough": "no colour map 'rainbough'",
    "export TEXT -o out --font 'No Such Sans'": "no font 'No Such Sans' is installed",
    "export TEXT -o out --layers 0-9": "no layer 4-9: this model has layers 0-3",
    "export TEXT -o out --layers 3-1": "write numbers and ranges",
    "export TEXT -o out --heads 0,8": "no head 8: these layers have heads 0-7",
    "export TEXT -o one.txt": "cannot write into",
    "export TEXT -o drawn -m no-such-folder/at/all": "overview.png that this would overwrite",
    "info own TEXT -m own-causal OTHER": "name the model once, first or with --model",
    "info ./mamba": "has no attention to show",
    "info ./gpt2 --copying --audit": "--copying",
    "schema train": "find, flow, info",
    # pictures and sounds
    "show TEXT -m ./vit": "reads images, not text: give it one with --image FILE",
    "show TEXT --image a.png -m ./vit": "reads images alone",
    "show --image a.png": "reads text, not images",
    "show --image none.png -m ./vit": "no such file",
    "show --image a.png -m ./vit --chat": "not valid with --chat or --generate",
    "show --image a.png -m ./vit --generate 3": "not valid with --chat or --generate",
    "show TEXT -m ./whisper": "give it with --audio FILE",
    "show TEXT -m ./whisper --from-second 1 --to-second 2": "--audio",
    "show TEXT --audio tone.wav -m ./hubert": "takes sound, not text",
    "show --audio tone.wav": "does not take sound",
    "show --audio none.wav -m ./hubert": "no such file",
    "show --audio tone.wav -m ./hubert --chat": "the text is its transcript",
    "show --audio tone.wav -m ./hubert --generate 3": "transcribes without a decoder",
    "show --audio tone.wav --image tone.wav -m ./hubert": "not valid with --image",
    "align tone.wav -m ./hubert": "aligns no words",
    "align tone.wav TEXT -m ./gpt2": "does not take sound",
    "align none.wav TEXT -m ./whisper": "no such file",
    "align tone.wav TEXT -m ./whisper --heads L7H0": "no cross-attention head L7H0",
    "align tone.wav TEXT -m ./whisper --heads 'encoder L0H0'": "is not a head of cross attention",
    "align tone.wav TEXT -m ./whisper --rank --format srt": "it ranks all heads",
    "align tone.wav TEXT -m ./whisper --rank -o map.png": "saves a picture",
    "align tone.wav TEXT -m ./whisper -o map.html": "its name must end in .png",
    "align tone.wav TEXT -m ./whisper --generate 4": "the transcript is given",
    "align long.wav TEXT -m ./whisper": "without the text the model writes",
    "align long.wav -m ./whisper --rank": "choose a part with --from-second and --to-second",
    "align tone.wav TEXT -m ./whisper --from-second 7": "ends at 1.30 seconds: 7 is behind that",
    "align tone.wav TEXT -m ./whisper --from-second 1 --to-second 0.5": "give a later end",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with every file that the commands name, and a tiny model of each sort."""
    place = tmp_path_factory.mktemp("place")
    for make in (folders.gpt2, folders.t5, folders.mamba, speech.whisper):
        make(place / make.__name__)
    folders.gpt2(place / "short", n_positions=12)
    speech.encoder(place / "hubert", "hubert")
    images.vision(place / "vit", "vit")
    images.picture(place / "a.png")
    speech.sound(place / "tone.wav", 1.3)
    speech.sound(place / "long.wav", 3.0)
    np.savez(
        place / "heads.npz", **{f"encoder.{n:02}": np.full((8, 3, 3), 1 / 3, np.float32) for n in range(4)}
    )
    np.savez(place / "negative.npz", np.random.default_rng(0).normal(size=(2, 3, 5, 5)))
    files = {
        "texts.txt": f"{WORDS['TEXT']}\n{WORDS['OTHER']}\n",
        "texts.jsonl": '{"text": "the cat"}\n{"words": "none"}\n',
        "one.txt": "A\nB\n",
        "empty.txt": "\n\n",
        "names.tsv": "A\tB\nking\tqueen\n",
        "pairs.tsv": "a cat\ta dog\n",
        "bank.conllu": treebank.conllu(),
        "drawn/overview.png": "mine",
        "empty/nothing": "",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, "utf-8")
    (place / "bad.txt").write_bytes(b"fine\n\xff\xfe\n")
    own = load("own")
    write_trace(keep_trace(own, own.prepare(WORDS["TEXT"])), place / "a.trace")
    return place


def files_below(place):
    """Every file with its size."""
    return {path: path.stat().st_size for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("typed", "sentence"), REFUSED.items(), ids=REFUSED)
def test_it_is_refused_in_one_sentence_and_leaves_no_file(run, place, monkeypatch, typed, sentence):
    monkeypatch.chdir(place)
    before = files_below(place)
    ran = run(*(WORDS.get(word, word) for word in shlex.split(typed))).refuses(sentence)
    assert ran.err.startswith("attnscope: ")
    assert ran.err.count("\n") == 1
    assert files_below(place) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(run, tmp_path):
    tmp_path.chmod(0o500)
    run("show", WORDS["TEXT"], "--head", "L0H0", "-o", tmp_path / "head.png").refuses("cannot be written")


def test_so_many_questions_are_not_asked_at_once(run):
    asked = (f"{number} -> cat" for number in range(501))
    run("find", *asked, "The cat sat.").refuses("501 questions: ask 500 at a time")
