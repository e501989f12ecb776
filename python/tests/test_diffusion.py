"""Diffusion models: the same calls."""
import json

import pytest

import millrace as mr


@pytest.mark.parametrize("words, options", [
    ([], {}),
    (["--block", "8", "--steps", "4", "--remask", "static"],
     {"block": 8, "steps": 4, "remask": "static"}),
    (["--threshold", "0.6"], {"threshold": 0.6}),
    (["--remask", "entropy", "--entropy-bound", "0.5", "--confidence", "drawn"],
     {"remask": "entropy", "entropy_bound": 0.5, "confidence": "drawn"}),
    # More than the engine was first made for: it makes room.
    (["--block", "32", "--remask", "sequential"], {"block": 32, "remask": "sequential"}),
    (["--block", "4"], {"block": 4}),
])
def test_texts_are_those_of_the_program(diffusion, program, words, options):
    said = json.loads(program("run", "storyteller-diffusion", "-p", "Once upon a time", "-n", "48",
                              "--seed", "7", "--json", *words))
    text = diffusion.generate("Once upon a time", max_tokens=48, seed=7, **options)
    assert (text, text.ids, text.passes) == (said["text"], said["ids"], said["passes"])


@pytest.mark.parametrize("options", [
    {}, {"block": 8, "steps": 4, "remask": "static"}, {"top_k": 0, "top_p": 1, "min_p": 0},
    {"remask": "entropy", "temperature": 0},
], ids=range(4))
def test_the_sampler_of_the_cpu_draws_the_same(diffusion, options):
    expected = diffusion.generate("Once", max_tokens=40, seed=3, **options)
    text = diffusion.generate("Once", max_tokens=40, seed=3, use_gpu_sampler=False, **options)
    assert (text.ids, text.passes) == (expected.ids, expected.passes)
    assert "".join(diffusion.stream("Once", max_tokens=40, seed=3, use_gpu_sampler=False,
                                    **options)) == expected
    texts = diffusion.generate_batch(["Once", "One day"], max_tokens=40, seed=3,
                                     use_gpu_sampler=False, **options)
    assert texts[0].ids == expected.ids
    assert diffusion.generate("Once", max_tokens=40, seed=3, use_gpu_sampler=True,
                              **options).ids == expected.ids


def test_the_sampler_of_the_cpu_is_for_generations(model, diffusion):
    with pytest.raises(mr.UsageError, match="only applies to diffusion models"):
        model.generate("Once", use_gpu_sampler=False)
    for call in (lambda: diffusion.profile("Once", use_gpu_sampler=False),
                 lambda: diffusion.eval("Once", use_gpu_sampler=False)):
        with pytest.raises(mr.UsageError, match=r"use_gpu_sampler: is not for (profile|eval)\(\)"):
            call()


def test_streams_and_batches(diffusion):
    expected = diffusion.generate("Once", max_tokens=40, seed=3)
    assert "".join(diffusion.stream("Once", max_tokens=40, seed=3)) == expected
    texts = diffusion.generate_batch(["Once", "One day", "The"], max_tokens=40, seed=3)
    assert texts[0] == expected
    assert texts[2] == diffusion.generate("The", max_tokens=40, seed=5)


def test_eval_is_that_of_the_program(diffusion, program, tmp_path):
    text = "Once upon a time there was a little dog. The dog was happy."
    (tmp_path / "text").write_text(text)
    said = json.loads(program("eval", "storyteller-diffusion", "--text", str(tmp_path / "text"),
                              "--bound", "2", "--json"))
    result = diffusion.eval(text, bound=2)
    assert (result.nll, result.tokens, result.bound_nll) == (said["nll"], said["tokens"],
                                                             said["bound_nll"])
    assert diffusion.eval(text, bound=0).bound_nll is None


def test_what_does_not_apply_is_refused(model, diffusion):
    for options in ({"block": 8}, {"steps": 3}, {"remask": "static"}, {"threshold": 0.5}):
        with pytest.raises(mr.UsageError, match="only applies to diffusion models"):
            model.generate("Once", **options)
    for options, words in [({"block": 0}, "1 or more"), ({"block": 1000}, "1 to 64"),
                           ({"remask": "some"}, "sequential, static"),
                           ({"remask": "static", "threshold": 0.5}, "only applies with"),
                           ({"logprobs": 2}, "diffusion models do not support it")]:
        with pytest.raises(mr.UsageError, match=words):
            diffusion.generate("Once", max_tokens=8, **options)
    for call in (lambda: diffusion.logits([1]), lambda: diffusion.embed("Once")):
        with pytest.raises(mr.UsageError, match="is a diffusion model"):
            call()
    with pytest.raises(mr.UsageError, match="its NLL is exact"):
        model.eval("Once", bound=4)
