// Attention over the paged KV cache on the GPU. Kernels read rows, positions and pages from the
// DeviceBatch in device memory, so that a captured step can be replayed with other lengths.
//
// q and out are [tokens, heads, head_dim] in f32, f16 or bf16, alike; the cache is f32, f16 or bf16
// with pages of 32 tokens; heads is a multiple of kv_heads; head_dim is a multiple of 8, 8 to 256.
// Tensor cores work where q and the cache are both f16 or both bf16, head_dim is 64, 80, 96, 128 or
// 256 (prefill on sm_90a: any multiple of 8 up to 128, too) and the device has them (sm_80); plain
// kernels everywhere else.
//
// Row r of sequence s (rows first[s] .. first[s + 1] - 1 of the batch) sees those of the keys [0,
// positions[first[s + 1] - 1] + 1) that the mask leaves; a row that sees none, or whose scores are
// all -inf, gives zeros. Rows of no sequence are left as they are. A page without a visible key is
// not read, and its entry in the table is not followed: pages behind the last visible key, and
// pages between sinks and a window. Keys behind the sequence's end never matter. Page tables are
// circular (page_table.h) and hold the whole sequence or, where a window is all that rows see and
// there are no sinks, at least the pages that the rows of a call see together.
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
// at once, and the last block to finish combines them. Correct for any number of rows.
// ctx.scratch: attention_scratch_bytes(), prepared once, and attention's own from then on.
//
// `q_sinks`, as q: what asks sinks (ops::attention()). None: q. With sinks, or where sequences
// stream (batch.streams), scratch is attention_stream_scratch_bytes().
void attention_decode(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                      const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                      Tensor q_sinks = {});

// For sequences with many rows: blocks of rows walk along the keys with a running softmax. Correct
// for any number of rows. Needs no scratch. On tensor cores the forwards for plain tensors do it
// (flash/dispatch.cuh): that for sm_90a up to head_dim 128, unless ctx.resident_attention is off,
// else mma.sync for the sizes it has (mma_takes_pages()). Other sizes go without tensor cores.
//
// Sinks that have a q of their own, or pages apart (batch.fronts), are added to the rest by a
// kernel that follows; their number and the window are the mask's. A float of scratch then for
// every row and head.
void attention_prefill(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                       const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                       Tensor q_sinks = {});

// Decode form up to kDecodeRows rows a sequence (batch.max_count), prefill form beyond. A caller
// that mixes long prompts and single tokens makes two sub-batches of them.
inline constexpr int kDecodeRows = 64;
void attention(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
               const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
               Tensor q_sinks = {});

// Scratch of the decode form for at most `rows` rows in a batch (min(tokens, sequences * max_count)
// of it counts) over at most `max_keys` keys a sequence.
std::size_t attention_scratch_bytes(int rows, int heads, int head_dim, int max_keys);
// The same where sequences have at most so many sinks and such a window, and others max_keys; and
// scratch of the prefill form for at most `prompt_rows`.
std::size_t attention_stream_scratch_bytes(int rows, int heads, int head_dim, int max_keys,
                                           int sinks, int window, int prompt_rows);
// Zeroes the counters at the end of the scratch, once, before the first attention_decode; kernels
// reset them to zero. Nothing else may write to that scratch from then on.
void attention_prepare_scratch(const Stream& stream, std::span<std::byte> scratch, int rows,
                               int heads);

}  // namespace mr::cuda
