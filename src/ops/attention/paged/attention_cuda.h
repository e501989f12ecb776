// Attention over the paged KV cache on the GPU. Kernels read rows, positions and pages from the
// DeviceBatch in device memory, so that a captured step can be replayed with other lengths.
//
// q and out are [tokens, heads, head_dim], both f32, f16 or bf16; the cache is f32, f16 or bf16
// with pages of 32 tokens; heads is a multiple of kv_heads; head_dim is a multiple of 8, 8 to 256.
// Tensor cores are used if q and the cache are both f16 or both bf16, head_dim is 64, 80, 96, 128
// or 256 (prefill on sm_90a: also any multiple of 8 up to 128) and the device has them (sm_80);
// plain kernels otherwise.
//
// Row r of sequence s (rows first[s] .. first[s + 1] - 1 of the batch) sees those of the keys [0,
// positions[first[s + 1] - 1] + 1) that the mask leaves; a row that sees none, or whose scores are
// all -inf, gives zeros. Rows of no sequence are unchanged. A page without a visible key is not
// read, and its table entry is not followed: pages after the last visible key, and pages between
// sinks and a window. Keys past the sequence's end never matter. Page tables are circular
// (page_table.h) and hold the whole sequence or, if rows see only a window and there are no sinks,
// at least the pages that the rows of a call see together.
//
// Limits: 65,535 heads; less than 2^30 rows and keys; rows * heads less than 2^31. The contents of
// the batch's arrays are trusted: first never falls, no sequence has more than max_count rows or a
// position beyond max_keys, and pages with visible keys lie in the cache. A call that breaks what
// the host can check throws ContractError with the sentence it broke (problem.cpp).
//
// The bits of a row depend on the form (decode or prefill), its query and its sequence's keys and
// values alone: not on other sequences or rows, the grid, max_keys, or how often it runs.
#pragma once

#include <cstddef>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"

namespace mr::cuda {

class Stream;

// For sequences with few rows, fastest with one: the keys are cut into parts that many blocks read
// at once, and the last block to finish combines them. Correct for any number of rows. ctx.scratch:
// attention_scratch_bytes(), prepared once, and used for nothing else from then on.
//
// `q_sinks`, as q: the queries for sinks (ops::attention()). None: q. With sinks, or if sequences
// stream (batch.streams), scratch is attention_stream_scratch_bytes().
void attention_decode(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                      const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                      Tensor q_sinks = {});

// For sequences with many rows: blocks of rows walk along the keys with a running softmax. Correct
// for any number of rows. Needs no scratch. On tensor cores it uses the forwards for plain tensors
// (flash/dispatch.cuh): the one for sm_90a up to head_dim 128, unless ctx.resident_attention is
// off, else mma.sync for its sizes (mma_takes_pages()). Other sizes do without tensor cores.
//
// Sinks with a q of their own, or with separate pages (batch.fronts),
// are added by a following kernel; their number and the window are
// the mask's. It needs a float of scratch per row and head.
void attention_prefill(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                       const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                       Tensor q_sinks = {});

// Decode form up to kDecodeRows rows per sequence (batch.max_count), prefill form beyond. A caller
// that mixes long prompts and single tokens should make two sub-batches.
inline constexpr int kDecodeRows = 64;
void attention(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
               const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
               Tensor q_sinks = {});

// Scratch of the decode form for at most `rows` rows in a batch (min(tokens, sequences * max_count)
// counts) over at most `max_keys` keys per sequence.
std::size_t attention_scratch_bytes(int rows, int heads, int head_dim, int max_keys);
// The same if streaming sequences have at most this many sinks and this window, and others
// max_keys; plus scratch of the prefill form for at most `prompt_rows`.
std::size_t attention_stream_scratch_bytes(int rows, int heads, int head_dim, int max_keys,
                                           int sinks, int window, int prompt_rows);
// Zeroes the counters at the end of the scratch, once, before the first attention_decode; kernels
// reset them to zero. Nothing else may write to that scratch from then on.
void attention_prepare_scratch(const Stream& stream, std::span<std::byte> scratch, int rows,
                               int heads);

}  // namespace mr::cuda
