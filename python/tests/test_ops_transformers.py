"""attn_implementation="millrace", compared with transformers' own attention."""
import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="4.53")

import millrace as mr  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU"))]


def models(device, config, **options):
    mr.ops.register_transformers()
    torch.manual_seed(0)
    made = []
    config = config(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                    pad_token_id=0, bos_token_id=1, eos_token_id=2, **options)
    for name in ("eager", "millrace"):
        own = copy.deepcopy(config)  # a model reads its own at every call
        own._attn_implementation = name
        model = transformers.AutoModelForCausalLM.from_config(own, attn_implementation=name)
        if made:
            model.load_state_dict(made[0].state_dict())
        made.append(model.to(device).eval())
    assert [m.config._attn_implementation for m in made] == ["eager", "millrace"]
    return made


# Two layers of sums over 64 to 96 columns in f32, on logits of about 1.
TOLERANCE = 2 * 96 * 2.0**-22


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config, options", [
    (transformers.LlamaConfig, {}),
    (transformers.MistralConfig, {"sliding_window": 5}),
], ids=["llama", "mistral with a window"])
def test_logits_gradients_and_texts(device, config, options):
    eager, ours = models(device, config, **options)
    ids = torch.randint(3, 99, (2, 17), device=device)
    losses = []
    for model in (eager, ours):
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, out.logits)
        losses.append((out.logits, model.model.layers[0].self_attn.q_proj.weight.grad))
    for wanted, made in zip(*losses):
        assert (wanted - made).abs().max() <= TOLERANCE * max(1, wanted.abs().max())
    texts = [model.generate(ids, max_new_tokens=12, do_sample=False) for model in (eager, ours)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(device, side):
    eager, ours = models(device, transformers.LlamaConfig)
    ids = torch.randint(3, 99, (3, 11), device=device)
    mask = torch.ones_like(ids)
    for row, count in enumerate((0, 4, 7)):
        mask[row, slice(0, count) if side == "left" else slice(11 - count, 11)] = 0
    with torch.no_grad():
        wanted, made = (m(input_ids=ids, attention_mask=mask).logits for m in (eager, ours))
    error = (wanted - made).abs()[mask.bool()]
    assert error.max() <= TOLERANCE * max(1, wanted.abs().max())
    if side == "left":
        texts = [m.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
                 for m in (eager, ours)]
        assert torch.equal(*texts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config, options", [
    (transformers.LlamaConfig, {}),
    (transformers.MistralConfig, {"sliding_window": 5}),
], ids=["llama", "mistral with a window"])
def test_static_caches(device, config, options):
    """A cache longer than its content, with a mask of the content, of all of it, or without a
    mask."""
    both = models(device, config, **options)
    ids = torch.randint(3, 99, (2, 10), device=device)
    for length in (0, 10, 24):
        made = []
        for model in both:
            cache, parts = transformers.StaticCache(config=model.config, max_cache_len=24), []
            for begin, end in ((0, 6), (6, 7), (7, 10)):
                mask = torch.ones(2, max(end, length), device=device) if length else None
                with torch.no_grad():
                    parts.append(model(input_ids=ids[:, begin:end], attention_mask=mask,
                                       past_key_values=cache, use_cache=True).logits)
            made.append(torch.cat(parts, 1))
        assert (made[0] - made[1]).abs().max() <= TOLERANCE * max(1, made[0].abs().max())


def test_windows_and_masks_with_holes():
    ids = torch.randint(3, 99, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 3] = 0
    eager, ours = models("cpu", transformers.LlamaConfig)
    with torch.no_grad():  # without a window they do not matter
        wanted, made = (m(input_ids=ids, attention_mask=mask).logits for m in (eager, ours))
        error = (wanted - made).abs()[mask.bool()]
        assert error.max() <= TOLERANCE * max(1, wanted.abs().max())
        _, ours = models("cpu", transformers.MistralConfig, sliding_window=4)
        with pytest.raises(mr.UsageError, match="zeros between ones"):
            ours(input_ids=ids, attention_mask=mask)
        # Padding on the right is not a hole until a token follows it.
        mask = torch.ones_like(ids)
        mask[1, 7:] = 0
        cache = ours(input_ids=ids, attention_mask=mask, use_cache=True).past_key_values
        with pytest.raises(mr.UsageError, match="zeros between ones"):
            ours(input_ids=ids[:, :3], past_key_values=cache,
                 attention_mask=torch.cat([mask, torch.ones(2, 3)], 1))
        with pytest.raises(mr.UsageError, match="entries per row for 10 tokens"):
            ours(input_ids=ids[:, :1], past_key_values=cache, attention_mask=mask)


def test_queries_of_another_text():
    """Keys of an encoder with padding, as many as the queries: every query has a row."""
    from millrace._ops_transformers import forward

    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    made, _ = forward(None, q, k, v, mask, is_causal=False)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.bool()[:, None, None, :])
    assert (made.transpose(1, 2) - wanted).abs().max() <= 1e-5


def test_packed_sequences_and_what_cannot_be():
    _, ours = models("cpu", transformers.LlamaConfig)
    ids = torch.randint(3, 99, (1, 12))
    bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
    positions = torch.tensor([[*range(5), *range(7)]])
    with torch.no_grad():
        alone = [ours(input_ids=part).logits for part in (ids[:, :5], ids[:, 5:])]
        made = ours(input_ids=ids, position_ids=torch.arange(12)[None], cu_seq_lens_q=bounds,
                    cu_seq_lens_k=bounds, max_length_q=7, max_length_k=7).logits
        # Rotations are relative: a sequence may begin at any position.
        assert (made - torch.cat(alone, 1)).abs().max() <= 1e-4
        with pytest.raises(mr.UsageError, match="sdpa"):  # a mask by position_ids is not supported
            ours(input_ids=ids, position_ids=positions, use_cache=False)
        ours(input_ids=ids, position_ids=torch.arange(12)[None], use_cache=False)  # one is
    ours.train()
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(mr.UsageError, match="no dropout"):
        ours(input_ids=ids)
