"""Random tokenizer.json files, each with random texts. Needs no package: the same on every machine."""
import tokenizer_cases as parts
from tokenizer_cases import MARK

# What an added token may be called: names of bytes, pieces, white space, characters that NFC makes.
NAMES = ["\u00b0", "\u00a3", "\u0120", "\u010a", "!", "s", "no", "Hi", "the", "<tok>", "<|end|>", "  ",
         "\n", " x", MARK, MARK * 2, "<0x21>", "<0x0A>", "<0xd0>", "\u00e9", "e\u0301", "\u0430",
         "\u65e5", "a b", "\u0120the", "."]
FRAGMENTS = [*NAMES, " ", " ", " ", "   ", "\t", "\u00a0", "\u2003", "a", "b", "ab", "Hi! no!", "it's",
             "12", "345", "\u043f\u0440\u0438\u0432\u0435\u0442", "20\u00b0C", "\u00a35", "\u65e5\u672c\u8a9e",
             "\U0001f600", "caf\u00e9", "cafe\u0301", "the", "other", "yes", "!", "?!", "_", "\u203f", "\u00b2",
             "\u24d0", "\u0301", "\u200d", "\r\n", "\n\n", "x", "q", "<", ">", "zz\u65e5q"]
LETTERS = "aehinoprstx"


class Draw:
    """Numbers that no version of Python changes."""

    def __init__(self, seed):
        self.state = seed * 2654435761 + 12345 & 0xFFFFFFFF

    def below(self, n):
        self.state = self.state * 1664525 + 1013904223 & 0xFFFFFFFF
        return (self.state >> 8) * n >> 24

    def one_in(self, n):
        return self.below(n) == 0

    def of(self, things):
        return things[self.below(len(things))]


def merged(draw, vocab, letters, count):
    """Merges of random neighbours, which the vocabulary then has."""
    made, merges = list(letters), []
    for _ in range(count):
        pair = [draw.of(made), draw.of(made)]
        if pair in merges or len("".join(pair)) > 6:
            continue
        merges.append(pair)
        whole = "".join(pair)
        made.append(whole)
        if whole not in vocab:
            vocab.append(whole)
    return merges


def added_tokens(draw, vocab):
    """Some are in the vocabulary, some only behind it."""
    names = []
    for _ in range(1 + draw.below(5)):
        name = draw.of(NAMES)
        if name not in names:
            names.append(name)
    for name in names:
        if name not in vocab and draw.one_in(5):
            vocab.append(name)
    return parts.numbered([(name, {
        "special": draw.one_in(3), "single_word": draw.one_in(3), "lstrip": draw.one_in(4),
        "rstrip": draw.one_in(3), "normalized": draw.one_in(3)})
        for name in names], vocab)


def around(draw, vocab):
    """Tokens before and after the text."""
    def template():
        before, after = [draw.of(vocab) for _ in range(draw.below(3))], [
            draw.of(vocab) for _ in range(draw.below(2))]
        entries = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
        entries.append({"Sequence": {"id": "A", "type_id": 0}})
        entries += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
        return {"type": "TemplateProcessing", "single": entries,
                "pair": [*entries, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {t: {"id": t, "ids": [vocab.index(t)], "tokens": [t]}
                                   for t in before + after}}

    byte_level = {"type": "ByteLevel", "add_prefix_space": draw.one_in(2), "trim_offsets": True,
                  "use_regex": True}
    kind = draw.below(5)
    if kind == 0:
        return None
    if kind == 1:
        return byte_level
    if kind == 2:
        return template()
    if kind == 3:
        token = draw.of(vocab)
        return {"type": "RobertaProcessing", "sep": [token, vocab.index(token)],
                "cls": [vocab[0], 0], "trim_offsets": True, "add_prefix_space": False}
    return {"type": "Sequence", "processors": draw.of([[template(), byte_level], [byte_level, template()]])}


def nfc_or_none(draw):
    return {"type": "NFC"} if draw.one_in(3) else None


def byte_level(draw):
    names = parts.byte_names()
    space, newline = names[32], names[10]
    left_out = [names[draw.of([33, 113, 0xA3, 0xB0, 0xD0, 0xE6])] for _ in range(draw.below(3))
                ] if draw.one_in(3) else []
    vocab = [name for name in names if name not in left_out]
    letters = [c for c in [*LETTERS, space, newline, *"!1.", names[0xC3], names[0xA9], names[0xD0],
                           names[0xB0], names[0xBF]] if c in vocab]
    merges = merged(draw, vocab, letters, 30)
    unk = draw.of([None, "<unk>", "q", "a"]) if left_out else draw.of([None, "<unk>"])
    if unk and unk not in vocab:
        vocab.append(unk)
    regex = draw.of([None, None, parts.LLAMA3, parts.QWEN])
    pre = {"type": "ByteLevel", "add_prefix_space": regex is None and draw.one_in(3),
           "trim_offsets": True, "use_regex": regex is None}
    if regex:
        split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                 "invert": False}
        pre = {"type": "Sequence", "pretokenizers": [split, pre]}
    tokens = added_tokens(draw, vocab)
    return parts.whole(
        added_tokens=tokens, normalizer=nfc_or_none(draw), pre_tokenizer=pre,
        post_processor=around(draw, vocab),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                 "use_regex": True},
        model=parts.model(vocab, merges, unk_token=unk, fuse_unk=draw.one_in(2),
                          ignore_merges=draw.one_in(3), dropout=draw.of([None, 0.0])))


def sentencepiece(draw):
    fallback = draw.of(["all", "all", "some", "none"])
    vocab = ["<unk>", "<s>", "</s>"]
    if fallback != "none":
        vocab += [f"<0x{b:02X}>" for b in range(256) if fallback == "all" or b % 3 or b == 0x21]
    letters = [*LETTERS, *"!1.b"] + ([] if draw.one_in(8) else [MARK])
    vocab += [*letters, *"Hy?'23\u00e9\u0430\n\u00b0"]
    merges = merged(draw, vocab, letters, 40)
    unk = draw.of(["<unk>", "<unk>", None, *[one for one in ("a", "1", "!", MARK) if one in vocab]])
    steps = [nfc_or_none(draw)]
    style = draw.of(["prepend", "replace", "metaspace"])
    pre, scheme = None, "always"
    if style == "metaspace":
        scheme = draw.of(["always", "first", "never"])
        pre = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme,
               "split": draw.one_in(2)}
    else:
        steps.append(parts.REPLACE)
        if style == "prepend":
            steps.insert(draw.below(3), {"type": "Prepend", "prepend": MARK})
    steps = [step for step in steps if step]
    tokens = added_tokens(draw, vocab)
    if draw.one_in(2):
        tokens = [parts.added(1, "<s>"), *tokens]
    decoders = parts.SP_DECODER["decoders"]
    if style == "replace" or scheme == "never":
        decoders = decoders[:-1]
    return parts.whole(
        added_tokens=tokens, normalizer={"type": "Sequence", "normalizers": steps} if steps else None,
        pre_tokenizer=pre, post_processor=around(draw, vocab[:3]),
        decoder={"type": "Sequence", "decoders": decoders},
        model=parts.model(vocab, merges, unk_token=unk, fuse_unk=draw.one_in(2),
                          byte_fallback=fallback != "none", ignore_merges=draw.one_in(3)))


def some_texts(draw, tokens, count):
    names = [token["content"] for token in tokens]
    plain = ["", " ", "\u043f\u0440\u0438\u0432\u0435\u0442", "Hi! no!", "20\u00b0C \u00a35", "".join(names),
             " ".join(names), draw.of(FRAGMENTS)]
    out = [draw.of(plain) for _ in range(count // 3)]
    while len(out) < count:
        out.append("".join(draw.of(names) if draw.one_in(3) else draw.of(FRAGMENTS)
                           for _ in range(1 + draw.below(14))))
    return out


def case(seed, count=6):
    """A tokenizer.json, and texts to encode with it."""
    draw = Draw(seed)
    for _ in range(4):
        draw.below(2)
    made = (sentencepiece if seed % 2 else byte_level)(draw)
    return made, some_texts(draw, made["added_tokens"], count)
