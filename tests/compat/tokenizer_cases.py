"""tokenizer.json files in unusual forms, and texts to encode with each. Needs no package."""
MARK = "\u2581"
LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
QWEN = LLAMA3.replace("\\p{N}{1,3}", "\\p{N}")

TEXTS = [
    "", " ", "  ", "a", "Hello world", " Hello  world ", "hello\nworld\n\n", "\tx\t", "12 345 6789",
    "I'll say it's 'fine'", "caf\u00e9 na\u00efve", "cafe\u0301", "\u65e5\u672c\u8a9e", "\u65e5 \u672c",
    "a\u65e5\u672cb\u8a9e", "\U0001f600\U0001f601 ok", "<s>x</s>", "<unk>", "<0x0A>", "x<0x0A>y",
    "Hello<|sep|>world", "Hello <|sep|> world", "<|sep|><|sep|>", "the<word>the", "a <word> b",
    "  <strip>  x", "zq zqzq", "The quick brown fox, 42 times.", "\u00a0x\u2003y", "a" * 70,
    "llo llo Hello Helloo", "foobar foo bar", "xabq abq bq xbq", "\u2581Hello", "ZZ\u00ffZ",
    "\u043f\u0440\u0438\u0432\u0435\u0442 \u0430", "20\u00b0C \u00b0 \u00a35", "Hi! no! ! it's s", "!",
    "<strip>  \n x", "<word> \t\n<word>", "x\u0301<word>\u0301 \u203f<word> \u00b2<word>",
]


def byte_names():
    """GPT-2's printable character of every byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = [], 0
    for byte in range(256):
        if byte in printable:
            names.append(chr(byte))
        else:
            names.append(chr(256 + extra))
            extra += 1
    return names


def added(at, text, special=True, **more):
    return {"id": at, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special, **more}


def numbered(tokens, vocab):
    """Added tokens with the ids that the library gives them: the vocabulary's, or the next ones."""
    out, behind = [], len(vocab)
    for text, flags in tokens:
        out.append(added(vocab.index(text) if text in vocab else behind, text, **flags))
        behind += text not in vocab
    return out


def model(vocab, merges, **more):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": {token: i for i, token in enumerate(vocab)},
            "merges": merges, **more}


def whole(**parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            **parts}


# --- Byte-level ----------------------------------------------------------------------------------

MERGES = ["H e", "l l", "ll o", "He llo", "\u0120 H", "\u0120H ello", "e llo", "t h", "th e",
          "\u0120 the", "1 2", "\u00c3 \u00a9", "o r", "w or", "\u0120 wor", "l d", "\u0120wor ld"]


def byte_level_vocab(leave_out=()):
    vocab = [name for i, name in enumerate(byte_names()) if i not in leave_out]
    for merge in MERGES:
        joined = merge.replace(" ", "")
        if joined not in vocab:
            vocab.append(joined)
    return vocab


def usable(merges, vocab):
    known = set(vocab)
    return [m for m in merges if all(part in known for part in [*m.split(" "), m.replace(" ", "")])]


def byte_level(regex=None, prefix=False, leave_out=(), tokens=(), unk=None, fuse=False,
               ignore=False, pairs=False, dropout=None, missing_unk=None, more_merges=(), **parts):
    pre = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
           "use_regex": regex is None}
    vocab = byte_level_vocab(leave_out)
    if unk:
        vocab.append(unk)
    merges = [*usable(MERGES, vocab), *more_merges]
    extra = numbered([(t, {}) if isinstance(t, str) else t for t in tokens], vocab)
    if regex:
        split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                 "invert": False}
        pre = {"type": "Sequence", "pretokenizers": [split, pre]}
    return whole(**{"added_tokens": extra, "pre_tokenizer": pre,
                    "decoder": {"type": "ByteLevel", "add_prefix_space": True,
                                "trim_offsets": True, "use_regex": True},
                    "model": model(vocab, [m.split(" ") for m in merges] if pairs else merges,
                                   unk_token=unk or missing_unk, fuse_unk=fuse,
                                   ignore_merges=ignore, dropout=dropout), **parts})


# --- SentencePiece-style -------------------------------------------------------------------------

def pieces(fallback=True, only_some=False):
    out = ["<unk>", "<s>", "</s>"]
    if fallback:
        out += [f"<0x{b:02X}>" for b in range(256) if not only_some or b < 128]
    out += [MARK, *"abcdefghijklmnoprstuvwxyHTIZ.,'0123456789<>|/\n"]
    out += ["ll", "He", "llo", "Hello", MARK + "H", MARK + "Hello", "th", "the", MARK + "the",
            MARK + MARK, "wor", "ld", "world", MARK + "world", "aa", "aaaa"]
    return out


SP_MERGES = [["l", "l"], ["H", "e"], ["ll", "o"], ["He", "llo"], [MARK, "Hello"], ["t", "h"],
             ["th", "e"], [MARK, "the"], [MARK, MARK], ["l", "d"], ["wor", "ld"],
             [MARK, "world"], ["a", "a"], ["aa", "aa"]]

PREPEND = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": MARK},
    {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
SP_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


NO_STRIP = {**SP_DECODER, "decoders": SP_DECODER["decoders"][:-1]}


def bos(token="<s>", at=1):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {token: {"id": token, "ids": [at], "tokens": [token]}}}


def sentencepiece(fallback=True, fuse=True, only_some=False, unk="<unk>", more_added=(),
                  bytes_added=None, ignore=False, merges=SP_MERGES, **parts):
    vocab = pieces(fallback, only_some)
    special = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    if bytes_added is not None:  # the bytes are added tokens, too
        special += [added(3 + b, f"<0x{b:02X}>", special=bytes_added, normalized=False)
                    for b in range(256)]
    special += numbered(more_added, vocab)
    return whole(**{"added_tokens": special, "normalizer": PREPEND, "decoder": SP_DECODER,
                    "post_processor": bos(),
                    "model": model(vocab, merges, unk_token=unk, fuse_unk=fuse,
                                   byte_fallback=fallback, ignore_merges=ignore), **parts})


def metaspace(scheme, split):
    return {"normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}}


def cases():
    sep = ["<|sep|>"]
    plain = {"special": False}
    raw = {"special": False, "normalized": False}
    return {
        "gpt2": byte_level(),
        "gpt2-prefix-space": byte_level(prefix=True),
        "gpt2-pairs": byte_level(pairs=True),
        "gpt2-special": byte_level(tokens=sep),
        "gpt2-added": byte_level(tokens=[("<|sep|>", plain), ("<word>", plain)]),
        "gpt2-added-normalized": byte_level(tokens=[("<|sep|>", {**plain, "normalized": True})],
                                            normalizer={"type": "NFC"}),
        "gpt2-lstrip": byte_level(tokens=[("<|sep|>", {"lstrip": True})]),
        "gpt2-rstrip": byte_level(tokens=[("<|sep|>", {"rstrip": True})]),
        "gpt2-both-strips": byte_level(tokens=[("<strip>", {"lstrip": True, "rstrip": True})]),
        "gpt2-single-word": byte_level(tokens=[("<word>", {"single_word": True}),
                                               ("zq", {**plain, "single_word": True})]),
        "gpt2-single-words": byte_level(tokens=[
            ("foo", {**plain, "single_word": True}), ("bar", {**plain, "single_word": True}),
            ("abq", {**plain, "single_word": True}), ("bq", plain)]),
        "gpt2-added-of-the-vocabulary": byte_level(tokens=[("b", plain), ("Hello", plain)]),
        "gpt2-nested-added": byte_level(tokens=["<|sep|>", ("<|sep|><|sep|>", plain),
                                                ("sep", plain)]),
        "gpt2-spaces-added": byte_level(tokens=[("  ", plain), ("    ", plain)]),
        "gpt2-nfc": byte_level(normalizer={"type": "NFC"}),
        "gpt2-bos": byte_level(tokens=sep, post_processor=bos("<|sep|>", len(byte_level_vocab()))),
        "gpt2-ignore-merges": byte_level(ignore=True),
        "gpt2-missing-bytes": byte_level(leave_out=(ord("q"), 0xE6, 0xFF)),
        "gpt2-missing-bytes-unk": byte_level(leave_out=(ord("q"), 0xE6), unk="<unk>"),
        "gpt2-missing-bytes-fused": byte_level(leave_out=(ord("q"), ord("z"), 0xE6, 0x97),
                                               unk="<unk>", fuse=True),
        "llama3": byte_level(LLAMA3, tokens=sep),
        "llama3-ignore-merges": byte_level(LLAMA3, ignore=True, tokens=sep),
        "qwen2": byte_level(QWEN, tokens=sep, normalizer={"type": "NFC"}),
        "llama2": sentencepiece(),
        "llama2-no-prefix": sentencepiece(normalizer=REPLACE, decoder=NO_STRIP),
        "llama2-single-unk": sentencepiece(fuse=False),
        "llama2-no-bytes": sentencepiece(fallback=False),
        "llama2-no-bytes-single": sentencepiece(fallback=False, fuse=False),
        "llama2-some-bytes": sentencepiece(only_some=True),
        "llama2-some-bytes-single": sentencepiece(only_some=True, fuse=False),
        "llama2-bytes-added": sentencepiece(bytes_added=False),
        "llama2-bytes-special": sentencepiece(bytes_added=True),
        "llama2-added": sentencepiece(more_added=[("<|sep|>", {}), ("<word>", raw)]),
        "llama2-added-flags": sentencepiece(more_added=[
            ("<|sep|>", {"lstrip": True}), ("<word>", {**raw, "rstrip": True}),
            ("<strip>", {"lstrip": True, "rstrip": True})]),
        "metaspace-always": sentencepiece(**metaspace("always", False)),
        "metaspace-first": sentencepiece(**metaspace("first", False)),
        "metaspace-never": sentencepiece(**metaspace("never", False), decoder=NO_STRIP),
        "metaspace-split": sentencepiece(**metaspace("always", True)),
        "metaspace-first-split": sentencepiece(**metaspace("first", True)),
        "metaspace-split-no-bytes": sentencepiece(fallback=False, **metaspace("always", True)),
        "metaspace-added": sentencepiece(more_added=[("<|sep|>", {}), ("<word>", raw)],
                                         **metaspace("first", False)),
        # Added tokens that are also names of bytes, characters or pieces of the vocabulary.
        "gpt2-added-bytes": byte_level(tokens=[
            (name, {**raw, "single_word": True}) for name in "\u00b0\u00a3\u0120!s\u0144"]),
        "gpt2-added-bytes-everywhere": byte_level(tokens=[(name, raw) for name in "\u00b0!"]),
        "gpt2-added-bytes-special": byte_level(tokens=[("\u00b0", {"single_word": True})],
                                               prefix=True),
        "llama3-added-bytes": byte_level(LLAMA3, ignore=True, tokens=[
            ("\u00b0", {**raw, "single_word": True}), ("\u0120the", raw)]),
        "llama2-added-characters": sentencepiece(more_added=[
            (name, {**raw, "single_word": True}) for name in ["a", "l", "the", MARK, ".", "!"]]),
        "llama2-added-bytes": sentencepiece(more_added=[("<0x21>", raw), ("<0xd0>", raw)]),
        "metaspace-added-characters": sentencepiece(more_added=[
            (name, {**plain, "single_word": True, "normalized": True})
            for name in ["a", "llo", MARK]], **metaspace("first", True)),
        "gpt2-white-space-after": byte_level(tokens=[
            ("<strip>", {"rstrip": True}), ("<word>", {**raw, "rstrip": True}), ("\n", raw),
            ("  ", raw)]),
        "llama2-ignore-merges": sentencepiece(ignore=True),
        "metaspace-ignore-merges": sentencepiece(ignore=True, **metaspace("first", True)),
        "llama2-no-unk": sentencepiece(fallback=False, unk=None),
        "llama2-no-unk-some-bytes": sentencepiece(only_some=True, unk=None),
        "gpt2-no-unk": byte_level(leave_out=(ord("q"), 0xE6)),
        "gpt2-no-dropout": byte_level(dropout=0.0),
        "gpt2-two-processors": byte_level(tokens=sep, post_processor={
            "type": "Sequence", "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                 "use_regex": True}, bos("<|sep|>", len(byte_level_vocab()))]}),
    }


def template(*single):
    """A post-processor of texts (A, B) and tokens in this order."""
    entries = [{"Sequence": {"id": t, "type_id": 0}} if t in "AB" else
               {"SpecialToken": {"id": t, "type_id": 0}} for t in single]
    return {"type": "TemplateProcessing", "single": entries, "pair": entries, "special_tokens": {
        t: {"id": t, "ids": [1], "tokens": [t]} for t in single if t not in "AB"}}


def refused():
    """What Millrace does not read though the library does, with words of the error."""
    prepend = {"type": "Prepend", "prepend": MARK}
    twice = {"type": "Sequence", "normalizers": [prepend, prepend, REPLACE]}
    behind_split = byte_level(LLAMA3, prefix=True)
    without_pre = byte_level(normalizer=prepend)
    wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    cases = {
        "prefix-space-behind-split": (behind_split, "add_prefix_space"),
        "prepend-byte-level": (without_pre, "Prepend"),
        "prepend-twice": (sentencepiece(normalizer=twice), "normalizers[1]"),
        "prepend-metaspace": (sentencepiece(**{**metaspace("always", False), "normalizer": prepend}),
                              "Prepend"),
        "dropout": (byte_level(dropout=0.1), "model.dropout"),
        "template-without-text": (byte_level(post_processor=template("a")), "post_processor.single"),
        "template-two-texts": (byte_level(post_processor=template("A", "a", "A")),
                               "post_processor.single[2]"),
        "template-second-text": (byte_level(post_processor=template("B")),
                                 "post_processor.single[0]"),
        "two-templates": (byte_level(post_processor={"type": "Sequence", "processors": [
            template("a", "A"), template("b", "A")]}), "processors[1]"),
        "unk-missing": (sentencepiece(fallback=False, unk="<none>"), "model.unk_token"),
        "unk-missing-byte-level": (byte_level(leave_out=(0xE6,), missing_unk="<none>"),
                                   "model.unk_token"),
        "id-of-its-own": (byte_level(added_tokens=[added(1000, "<|sep|>")]), "added_tokens[0].id"),
        "decoder": (byte_level(decoder=wordpiece), "decoder"),
        "decoder-of-others": (byte_level(decoder=SP_DECODER), "decoder"),
        "same-when-normalized": (byte_level(normalizer={"type": "NFC"}, tokens=[
            (name, {"special": False, "normalized": True}) for name in ["\u00e9", "e\u0301"]]),
                                 "added_tokens"),
        "no-merges": (sentencepiece(merges=[]), "model.merges"),
        "merge-of-an-added-token": (byte_level(tokens=["HH"], more_merges=["H H"]), "model.merges"),
    }
    return cases
