// Attention of each row's new positions: norm and RoPE of queries and keys, store of keys and values, attention.
//
// Compiled with these macros:
//   GROUP, KV_HEADS, D   query heads per key head, key heads, head size (64 or 128)
//   COUNT                new positions per row; COUNT * (GROUP + 1) is at most 8
//   WARPS                warps per block
//   PAGE                 positions per page (paged_attention, store_keys)
//   PROMPTS              1: rows of prompts follow the frames' (paged_attention)
//   POSITIONS            positions per row in the cache, 16 (frame_attention)
//   RESIDENT             blocks per multiprocessor that registers must suffice for (frame_attention)
//   INPUTS               0, or the width of x: qkv are then products of the rows of x before their RMSNorm (frame_attention)
//
// A warp processes 16 keys at a time on the tensor cores: scores are queries times keys, sums are transposed values times
// weights. A lane (group = lane / 4, quarter = lane % 4) holds 16-byte pieces of its group's vector: a query, a new key or a
// cached key. The order of terms in a product is arbitrary, so the pieces are fed in memory order.

#include "bfloat16.cuh"

constexpr int PIECES = D / 32;
constexpr int HALVES = D / 64;
constexpr int QUERIES = COUNT * GROUP;
constexpr int KEYS = 16;
constexpr int WIDTH = (GROUP + 2) * KV_HEADS * D;
constexpr float NOTHING = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

struct Vector {
    uint4 piece[PIECES];
};

// Keys of two tiles of 8, and values of 16 keys.
struct Block {
    Vector key[2];
    uint4 value[4][HALVES];
};

// Those of the 16 that a lane holds: keys group and group + 8; values 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of quarter q.
__device__ __forceinline__ int key_of(int tile, int group) { return tile * 8 + group; }
__device__ __forceinline__ int value_of(int i, int quarter) { return 2 * quarter + i % 2 + 8 * (i / 2); }

// top and total belong to the query of this lane's group. sum[i] are the elements 8 group + i of the first half of a head
// (0, 1) and of the second (2, 3), for the queries 2 quarter (0, 2) and 2 quarter + 1 (1, 3).
struct Softmax {
    float top, total, sum[8][4];
};

template <bool OWN>
__device__ __forceinline__ uint4 load(const bf16* source) {
    return OWN ? load_own(source) : *(const uint4*)source;
}

template <bool OWN = false>
__device__ __forceinline__ Vector load_vector(const bf16* source, int quarter) {
    Vector v;
    #pragma unroll
    for (int c = 0; c < PIECES; c++) v.piece[c] = load<OWN>(source + (4 * c + quarter) * 8);
    return v;
}

__device__ __forceinline__ void store_vector(bf16* target, int quarter, const Vector& v) {
    #pragma unroll
    for (int c = 0; c < PIECES; c++) *(uint4*)(target + (4 * c + quarter) * 8) = v.piece[c];
}

__device__ __forceinline__ float over_quarters(float value) {
    value += __shfl_xor_sync(ALL, value, 1);
    return value + __shfl_xor_sync(ALL, value, 2);
}

// RMSNorm and RoPE of a head spread over four lanes, with the reference's rounding steps.
__device__ __forceinline__ Vector prepare(const Vector& raw, const Vector& norm, const Vector& angles, float eps) {
    float x[PIECES][8], squares = 0.0f;
    #pragma unroll
    for (int c = 0; c < PIECES; c++) {
        unpack(raw.piece[c], x[c]);
        #pragma unroll
        for (int i = 0; i < 8; i++) squares += x[c][i] * x[c][i];
    }
    const float inverse = rsqrtf(over_quarters(squares) / D + eps);
    Vector normed, out;
    #pragma unroll
    for (int c = 0; c < PIECES; c++) {
        #pragma unroll
        for (int i = 0; i < 8; i++) x[c][i] *= inverse;
        normed.piece[c] = times(pack(x[c]), norm.piece[c]);
    }
    #pragma unroll
    for (int c = 0; c < PIECES / 2; c++) {
        const uint4 a = normed.piece[c], b = normed.piece[c + PIECES / 2];
        const uint4 cos = angles.piece[c], sin = angles.piece[c + PIECES / 2];
        out.piece[c] = minus(times(a, cos), times(b, sin));
        out.piece[c + PIECES / 2] = plus(times(b, cos), times(a, sin));
    }
    return out;
}

// Cosines in the first half of the pieces, sines in the second.
__device__ __forceinline__ Vector load_angles(const bf16* cos, const bf16* sin, int position, int quarter) {
    Vector v;
    #pragma unroll
    for (int c = 0; c < PIECES / 2; c++) {
        v.piece[c] = *(const uint4*)(cos + position * (D / 2) + (4 * c + quarter) * 8);
        v.piece[c + PIECES / 2] = *(const uint4*)(sin + position * (D / 2) + (4 * c + quarter) * 8);
    }
    return v;
}

// The vector that a group of lanes prepares: groups below QUERIES a query, the next COUNT a new key, others the first query.
struct Role {
    bool is_key;
    int fresh, head;

    __device__ __forceinline__ Role(int group) {
        is_key = group >= QUERIES && group < QUERIES + COUNT;
        fresh = is_key ? group - QUERIES : group < QUERIES ? group / GROUP : 0;
        head = group < QUERIES ? group % GROUP : 0;
    }

    __device__ __forceinline__ int offset(int key_head) const {
        return (is_key ? GROUP * KV_HEADS + key_head : key_head * GROUP + head) * D;
    }
};

template <bool OWN = false, typename Source>
__device__ __forceinline__ void load_keys(Block& block, int first, int end, int group, int quarter, Source source) {
    #pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int at = first + key_of(tile, group);
        if (at < end) block.key[tile] = load_vector<OWN>(source(at, tile), quarter);
        else block.key[tile] = {};
    }
}

template <bool OWN = false, typename Source>
__device__ __forceinline__ void load_values(Block& block, int first, int end, int group, int quarter, Source source) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = first + value_of(i, quarter);
        #pragma unroll
        for (int half = 0; half < HALVES; half++)
            block.value[i][half] = at < end ? load<OWN>(source(at, i) + half * 64 + 8 * group) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void clear(Softmax& softmax) {
    softmax.top = NOTHING;
    softmax.total = 0.0f;
    #pragma unroll
    for (int i = 0; i < 8 * 4; i++) (&softmax.sum[0][0])[i] = 0.0f;
}

__device__ __forceinline__ unsigned word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Adds 16 keys to the online softmax of every query; `last` is the last position that this lane's query attends to. `then` is
// called when the keys have been read: their registers may have the next ones.
template <typename Then>
__device__ __forceinline__ void attend(Softmax& softmax, const Vector& query, const Block& block, int first, int last, int quarter, float scale, Then then) {
    float scores[2][4] = {};
    #pragma unroll
    for (int tile = 0; tile < 2; tile++)
        #pragma unroll
        for (int c = 0; c < PIECES; c++) {
            const uint4 q = query.piece[c], k = block.key[tile].piece[c];
            multiply(scores[tile], q.x, 0, q.y, 0, k.x, k.y);
            multiply(scores[tile], q.z, 0, q.w, 0, k.z, k.w);
        }
    then();
    float top = softmax.top;
    bool seen[2][2];
    #pragma unroll
    for (int tile = 0; tile < 2; tile++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            seen[tile][i] = first + tile * 8 + 2 * quarter + i <= last;
            scores[tile][i] *= scale * LOG2_E;
            if (seen[tile][i]) top = fmaxf(top, scores[tile][i]);
        }
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
    const float shrink = exp2f(softmax.top - top);
    softmax.top = top;
    float weight[2][2], total = 0.0f;
    #pragma unroll
    for (int tile = 0; tile < 2; tile++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[tile][i] = seen[tile][i] ? exp2f(scores[tile][i] - top) : 0.0f;
            total += weight[tile][i];
        }
    softmax.total = softmax.total * shrink + over_quarters(total);
    const unsigned near = pack(weight[0][0], weight[0][1]), far = pack(weight[1][0], weight[1][1]);
    const float even = __shfl_sync(ALL, shrink, 8 * quarter), odd = __shfl_sync(ALL, shrink, 8 * quarter + 4);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        float* sum = softmax.sum[i];
        unsigned pairs[2][2] = {};
        #pragma unroll
        for (int half = 0; half < HALVES; half++)
            #pragma unroll
            for (int j = 0; j < 2; j++)
                // The same element of two adjacent keys.
                pairs[half][j] = __byte_perm(word(block.value[2 * j][half], i / 2), word(block.value[2 * j + 1][half], i / 2),
                                             i % 2 ? 0x7632 : 0x5410);
        sum[0] *= even;
        sum[1] *= odd;
        sum[2] *= even;
        sum[3] *= odd;
        multiply(sum, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], near, far);
    }
}

// This lane's 8 elements of one half for query 2 quarter + odd.
__device__ __forceinline__ void gather(const Softmax& softmax, int half, int odd, float* out) {
    #pragma unroll
    for (int i = 0; i < 8; i++) out[i] = softmax.sum[i][2 * half + odd];
}

// Broadcasts a new key from the group that prepared it.
__device__ __forceinline__ Vector from_group(const Vector& v, int group, int quarter) {
    Vector out;
    #pragma unroll
    for (int c = 0; c < PIECES; c++) {
        out.piece[c].x = __shfl_sync(ALL, v.piece[c].x, group * 4 + quarter);
        out.piece[c].y = __shfl_sync(ALL, v.piece[c].y, group * 4 + quarter);
        out.piece[c].z = __shfl_sync(ALL, v.piece[c].z, group * 4 + quarter);
        out.piece[c].w = __shfl_sync(ALL, v.piece[c].w, group * 4 + quarter);
    }
    return out;
}

__device__ __forceinline__ void insert_keys(Block& block, const Vector (&fresh)[COUNT], int first, int start, int group) {
    #pragma unroll
    for (int tile = 0; tile < 2; tile++)
        #pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (first + key_of(tile, group) == start + i) block.key[tile] = fresh[i];
}

// A lane's pieces of the values of new positions.
struct Values {
    uint4 piece[COUNT][HALVES];
};

// `source`: of the first new position; those after it are WIDTH apart.
__device__ __forceinline__ Values load_new_values(const bf16* source, int group) {
    Values values;
    #pragma unroll
    for (int i = 0; i < COUNT; i++)
        #pragma unroll
        for (int half = 0; half < HALVES; half++)
            values.piece[i][half] = *(const uint4*)(source + i * WIDTH + half * 64 + 8 * group);
    return values;
}

// The compiler puts a load where its value is first used, behind what waits for another load. What uses `first` needs `others`
// too after this; `zero` is 0, which the compiler does not know.
__device__ __forceinline__ void load_together(uint4& first, const Values& others, int zero) {
    unsigned bits = 0;
    #pragma unroll
    for (int i = 0; i < COUNT; i++)
        #pragma unroll
        for (int half = 0; half < HALVES; half++) bits |= others.piece[i][half].x;
    first.x |= bits & zero;
}

__device__ __forceinline__ void insert_values(Block& block, const Values& fresh, int first, int start, int quarter) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int new_one = 0; new_one < COUNT; new_one++)
            if (first + value_of(i, quarter) == start + new_one)
                #pragma unroll
                for (int half = 0; half < HALVES; half++) block.value[i][half] = fresh.piece[new_one][half];
}

// Each new position's by the lanes of one quarter.
template <typename Target>
__device__ __forceinline__ void store_values(const Values& fresh, int group, int quarter, Target target) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++)
        #pragma unroll
        for (int half = 0; half < HALVES; half++)
            if (quarter == i) *(uint4*)(target(i) + half * 64 + 8 * group) = fresh.piece[i][half];
}

#ifdef PAGE

// Replaces the keys at hand. Beyond the last position they stay, and are masked.
template <typename Source>
__device__ __forceinline__ void replace_keys(Block& block, int first, int end, int group, int quarter, Source source) {
    #pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int at = first + key_of(tile, group);
        const bf16* const key = source(at, tile);
        #pragma unroll
        for (int c = 0; c < PIECES; c++) load_own_if(at < end, block.key[tile].piece[c], key + (4 * c + quarter) * 8);
    }
}

template <typename Source>
__device__ __forceinline__ void replace_values(Block& block, int first, int end, int group, int quarter, Source source) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = first + value_of(i, quarter);
        const bf16* const value = source(at, i);
        #pragma unroll
        for (int half = 0; half < HALVES; half++) load_own_if(at < end, block.value[i][half], value + half * 64 + 8 * group);
    }
}

// Rows of prompts per block: a warp has eight queries.
constexpr int MOST_ROWS = 8 / GROUP;

// Keys and values of one key head, by position.
struct Pages {
    bf16 *keys, *values;
    const long long* table;
    int head;

    __device__ __forceinline__ size_t offset_in(long long page, int at) const { return ((page * PAGE + at % PAGE) * KV_HEADS + head) * D; }
    __device__ __forceinline__ size_t offset(int at) const { return offset_in(table[at / PAGE], at); }
    __device__ __forceinline__ bf16* key(int at) const { return keys + offset(at); }
    __device__ __forceinline__ bf16* value(int at) const { return values + offset(at); }
};

// Inputs of a head for the rows that are computed together.
struct Inputs {
    const bf16 *qkv, *q_norm, *k_norm, *cos, *sin;
    const long long *page_table, *slots, *positions;
    int frames, stride_page_table;
    float eps, scale;
};

// The pages of a lane's keys and values of 16 positions.
struct Places {
    int key[2], value[4];
};

__device__ __forceinline__ void attend_for_frame(Softmax& softmax, const Inputs& in, Pages pages, int row) {
    alignas(16) __shared__ bf16 fresh[WARPS][2][D];

    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = lane / 4, quarter = lane % 4, head = pages.head;
    const int position = (int)in.positions[row];
    pages.table = in.page_table + in.slots[row] * in.stride_page_table;
    const bf16* own = in.qkv + (size_t)row * WIDTH;
    const Role role(group);
    // Where pages have whole eights, the positions from a multiple of eight on have one.
    auto page_of = [&](int first, int at) { return (int)pages.table[min(first + (PAGE % 8 ? at : at / 8 * 8), position) / PAGE]; };
    auto look_up = [&](int first) {
        Places places;
        #pragma unroll
        for (int tile = 0; tile < 2; tile++) places.key[tile] = page_of(first, key_of(tile, group));
        #pragma unroll
        for (int i = 0; i < 4; i++) places.value[i] = page_of(first, value_of(i, quarter));
        return places;
    };
    // Pages of the next positions to load, looked up a step ahead: an address that waits for the table stalls the rest.
    Places places = look_up(warp * KEYS);
    auto key_at = [&](int at, int tile) { return pages.keys + pages.offset_in(places.key[tile], at); };
    auto value_at = [&](int at, int i) { return pages.values + pages.offset_in(places.value[i], at); };

    // No kernel of this tick writes earlier positions, so these loads need not wait for the previous kernel.
    Block block;
    load_keys(block, warp * KEYS, position, group, quarter, key_at);
    load_values(block, warp * KEYS, position, group, quarter, value_at);
    places = look_up((warp + WARPS) * KEYS);
    const Vector norm = load_vector(role.is_key ? in.k_norm : in.q_norm, quarter);
    const Vector angles = load_angles(in.cos, in.sin, position, quarter);
    const size_t place = pages.offset(position);
    wait_for_previous();

    Vector raw = load_vector(own + role.offset(head), quarter);
    const Values fresh_values = load_new_values(own + ((GROUP + 1) * KV_HEADS + head) * D, group);
    load_together(raw.piece[0], fresh_values, in.frames >> 31);
    Vector query = prepare(raw, norm, angles, in.eps);
    if (warp == 0) {
        if (role.is_key) store_vector(pages.keys + place, quarter, query);
        store_values(fresh_values, group, quarter, [&](int) { return pages.values + place; });
    }
    // Kept in shared memory: a warp's registers hold other positions until it reaches the new one, if it does.
    if (role.is_key) store_vector(fresh[warp][0], quarter, query);
    store_values(fresh_values, group, quarter, [&](int) { return fresh[warp][1]; });
    __syncwarp();
    if (group >= QUERIES) query = {};

    for (int first = warp * KEYS; first <= position; first += WARPS * KEYS) {
        if (position - first < KEYS) {
            const Vector key[1] = {load_vector(fresh[warp][0], quarter)};
            insert_keys(block, key, first, position, group);
            insert_values(block, load_new_values(fresh[warp][1], group), first, position, quarter);
        }
        // Branches keep the compiler from moving the loads: it would put those of keys behind the softmax.
        const int next = first + WARPS * KEYS;
        const bool more = next < position;
        attend(softmax, query, block, first, position, quarter, in.scale, [&] { if (more) replace_keys(block, next, position, group, quarter, key_at); });
        if (more) replace_values(block, next, position, group, quarter, value_at);
        places = look_up(next + WARPS * KEYS);
    }
}

// The first row of the prompt of row `last`, whose rows have consecutive positions. 32 rows are compared at a time.
__device__ __forceinline__ int first_of_prompt(const Inputs& in, int last, int lane) {
    const long long slot = in.slots[last], ahead = in.positions[last] - last;
    int low = max(in.frames, (int)-ahead) - 1, high = last;
    while (high - low > 1) {
        const int stride = (high - low - 2) / LANES + 1, row = high - (lane + 1) * stride;
        const bool same = row > low && in.slots[row] == slot && in.positions[row] - row == ahead;
        const int count = __popc(__ballot_sync(ALL, same));
        low = max(low, high - (count + 1) * stride);
        high -= count * stride;
    }
    return high;
}

// Attention of rows top to bottom, which may be of several prompts.
__device__ __forceinline__ void attend_for_prompts(Softmax& softmax, const Inputs& in, Pages pages, int top, int bottom) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = lane / 4, quarter = lane % 4, head = pages.head;
    const int row = min(top + group / GROUP, bottom), position = (int)in.positions[row];
    const Vector norm = load_vector(in.q_norm, quarter), angles = load_angles(in.cos, in.sin, position, quarter);
    int last_row = bottom, first_row = first_of_prompt(in, last_row, lane);
    wait_for_previous();

    const bf16* own = in.qkv + (size_t)row * WIDTH + (head * GROUP + group % GROUP) * D;
    const Vector query = prepare(load_vector(own, quarter), norm, angles, in.eps);
    while (true) {
        // Positions from `fresh` on are rows of qkv, and those from `stored` on rows of this block, which stores them.
        const int end = (int)in.positions[last_row] + 1, fresh = end - 1 - (last_row - first_row);
        const int stored = fresh + max(top - first_row, 0), last = row >= first_row && row <= last_row ? position : -1;
        const bf16* const fresh_keys = in.qkv + (size_t)first_row * WIDTH + (GROUP * KV_HEADS + head) * D;
        pages.table = in.page_table + in.slots[last_row] * in.stride_page_table;
        auto key_at = [&](int at, int) -> const bf16* { return at < fresh ? pages.key(at) : fresh_keys + (at - fresh) * WIDTH; };
        auto value_at = [&](int at, int) -> const bf16* { return at < fresh ? pages.value(at) : fresh_keys + (at - fresh) * WIDTH + KV_HEADS * D; };
        for (int first = warp * KEYS; first < end; first += WARPS * KEYS) {
            Block block;
            load_keys(block, first, end, group, quarter, key_at);
            if (first + KEYS > fresh) {
                const Vector norm = load_vector(in.k_norm, quarter);
                #pragma unroll
                for (int tile = 0; tile < 2; tile++) {
                    const int at = first + key_of(tile, group);
                    const Vector key = prepare(block.key[tile], norm, load_angles(in.cos, in.sin, min(at, end - 1), quarter), in.eps);
                    if (at >= fresh) block.key[tile] = key;
                }
            }
            load_values(block, first, end, group, quarter, value_at);
            if (first + KEYS > stored) {
                #pragma unroll
                for (int tile = 0; tile < 2; tile++) {
                    const int at = first + key_of(tile, group);
                    if (at >= stored && at < end) store_vector(pages.key(at), quarter, block.key[tile]);
                }
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = first + value_of(i, quarter);
                    #pragma unroll
                    for (int half = 0; half < HALVES; half++)
                        if (at >= stored && at < end) *(uint4*)(pages.value(at) + half * 64 + 8 * group) = block.value[i][half];
                }
            }
            attend(softmax, query, block, first, last, quarter, in.scale, [] {});
        }
        if (first_row <= top) return;
        last_row = first_row - 1;
        first_row = first_of_prompt(in, last_row, lane);
    }
}

// A block has a row of a frame, or up to MOST_ROWS of prompts, whose rows follow the frames. Its warps split the keys. With few
// warps, limits registers so that 12 warps fit a multiprocessor and many rows hide each other's loads.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, WARPS <= 6 ? 12 / WARPS : 1)
paged_attention(const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const bf16* cos, const bf16* sin, bf16* keys,
                bf16* values, const long long* page_table, const long long* slots, const long long* positions, bf16* out,
                int frames, int rows, int stride_page_table, float eps, float scale) {
    __shared__ float tops[WARPS][GROUP], totals[WARPS][GROUP], sums[WARPS][GROUP][D];

    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = lane / 4, quarter = lane % 4, head = blockIdx.x;
    // Blocks of prompts, which take longest, come first.
    const int prompts = gridDim.y - frames;
    const bool is_prompt = PROMPTS && blockIdx.y < prompts;
    const int top = is_prompt ? frames + blockIdx.y * MOST_ROWS : blockIdx.y - prompts;
    const int bottom = is_prompt ? min(top + MOST_ROWS, rows) - 1 : top;
    const Inputs in{qkv, q_norm, k_norm, cos, sin, page_table, slots, positions, frames, stride_page_table, eps, scale};
    let_next_start();
    Softmax softmax;
    clear(softmax);
    if (is_prompt) attend_for_prompts(softmax, in, Pages{keys, values, nullptr, head}, top, bottom);
    else attend_for_frame(softmax, in, Pages{keys, values, nullptr, head}, top);

    // Row by row: what these blocks have of shared memory, the product after them lacks for its weights.
    for (int row = top; row <= bottom; row++) {
        if (row > top) __syncthreads();
        if (group / GROUP == row - top) {
            tops[warp][group % GROUP] = softmax.top;
            totals[warp][group % GROUP] = softmax.total;
        }
        #pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int query = 2 * quarter + odd;
            if (query / GROUP == row - top)
                #pragma unroll
                for (int half = 0; half < HALVES; half++) gather(softmax, half, odd, &sums[warp][query % GROUP][half * 64 + 8 * group]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < GROUP * D; i += WARPS * LANES) {
            const int g = i / D, d = i % D;
            float top_score = NOTHING, total = 0.0f, sum = 0.0f;
            #pragma unroll
            for (int other = 0; other < WARPS; other++) top_score = fmaxf(top_score, tops[other][g]);
            #pragma unroll
            for (int other = 0; other < WARPS; other++) {
                const float weight = exp2f(tops[other][g] - top_score);
                total += totals[other][g] * weight;
                sum += sums[other][g][d] * weight;
            }
            out[((size_t)row * GROUP * KV_HEADS + head * GROUP + g) * D + d] = (bf16)pack(sum / total, 0.0f);
        }
    }
}

// Stores keys and values of a row, for prompt_attention.py; four lanes per key head, spare lanes repeat a head.
extern "C" __global__ void
store_keys(const bf16* qkv, const bf16* __restrict__ k_norm, const bf16* __restrict__ cos,
           const bf16* __restrict__ sin, bf16* keys, bf16* values, const long long* __restrict__ page_table,
           const long long* __restrict__ slots, const long long* __restrict__ positions, int stride_page_table, float eps) {
    const int row = blockIdx.x, head = threadIdx.x / 4 % KV_HEADS, quarter = threadIdx.x % 4;
    const int position = (int)positions[row];
    const long long page = page_table[slots[row] * stride_page_table + position / PAGE];
    const size_t at = ((page * PAGE + position % PAGE) * KV_HEADS + head) * D;
    const Vector norm = load_vector(k_norm, quarter), angles = load_angles(cos, sin, position, quarter);
    let_next_start();
    wait_for_previous();
    const bf16* own = qkv + (size_t)row * WIDTH + (GROUP * KV_HEADS + head) * D;
    store_vector(keys + at, quarter, prepare(load_vector(own, quarter), norm, angles, eps));
    store_vector(values + at, quarter, load_vector(own + KV_HEADS * D, quarter));
}

#else

// The factor of RMSNorm for a row of x, computed by one warp; 1 where qkv are products of normed rows.
__device__ __forceinline__ float row_scale(const bf16* x, int lane, float eps) {
    if (INPUTS == 0) return 1.0f;
    float sum = 0.0f;
    for (int i = 8 * lane; i < INPUTS; i += 8 * LANES) sum += squares(*(const uint4*)(x + i));
    #pragma unroll
    for (int other = LANES / 2; other; other /= 2) sum += __shfl_xor_sync(ALL, sum, other);
    return rsqrtf(sum / (INPUTS ? INPUTS : 1) + eps);
}

__device__ __forceinline__ uint4 scaled(uint4 piece, float factor) {
    if (INPUTS == 0) return piece;
    float x[8];
    unpack(piece, x);
    #pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= factor;
    return pack(x);
}

__device__ __forceinline__ Vector scaled(Vector v, float factor) {
    #pragma unroll
    for (int c = 0; c < PIECES; c++) v.piece[c] = scaled(v.piece[c], factor);
    return v;
}

// Blocks that leave a thread fewer registers: norms and angles wait in shared memory, and cached keys and values bypass the
// first-level cache.
constexpr bool TIGHT = RESIDENT * WARPS > 12;

// One warp per row and key head: a frame's positions are one block of keys.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, RESIDENT)
frame_attention(const bf16* x, const bf16* qkv, const bf16* q_norm, const bf16* k_norm, const bf16* cos, const bf16* sin,
                bf16* keys, bf16* values, bf16* out, int stride_x, int rows, int start, float eps, float scale) {
    static_assert(POSITIONS == KEYS, "a frame is one block");
    const int index = blockIdx.x * WARPS + threadIdx.x / LANES;
    const int row = index / KV_HEADS, head = index % KV_HEADS;
    const int lane = threadIdx.x % LANES, group = lane / 4, quarter = lane % 4;
    const Role role(group);
    // Norms of queries and keys; cosines, then sines of each new position.
    __shared__ bf16 common[2 + COUNT][D];
    Vector norm, angles;
    if (TIGHT) {
        for (int i = threadIdx.x; i < (2 + COUNT) * D / 8; i += WARPS * LANES) {
            const int of = i / (D / 8), at = i % (D / 8) * 8, place = (start + of - 2) * (D / 2) + at;
            *(uint4*)&common[of][at] = *(const uint4*)(of == 0 ? q_norm + at : of == 1 ? k_norm + at : at < D / 2 ? cos + place : sin + place - D / 2);
        }
        __syncthreads();
    } else {
        norm = load_vector(role.is_key ? k_norm : q_norm, quarter), angles = load_angles(cos, sin, start + role.fresh, quarter);
    }
    auto offset = [&](int at) { return (((size_t)row * POSITIONS + at) * KV_HEADS + head) * D; };
    let_next_start();
    if (row >= rows) return;
    // Earlier positions were written before the last draw, so these loads need not wait for the previous kernel.
    Block block;
    load_keys<TIGHT>(block, 0, start, group, quarter, [&](int at, int) { return keys + offset(at); });
    load_values<TIGHT>(block, 0, start, group, quarter, [&](int at, int) { return values + offset(at); });
    wait_for_previous();

    const bf16* own = qkv + (size_t)row * COUNT * WIDTH;
    Vector raw = load_vector(own + role.fresh * WIDTH + role.offset(head), quarter);
    Values fresh_values = load_new_values(own + ((GROUP + 1) * KV_HEADS + head) * D, group);
    load_together(raw.piece[0], fresh_values, rows >> 31);
    float factors[COUNT];
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        factors[i] = row_scale(x + (size_t)(row * COUNT + i) * stride_x, lane, eps);
        #pragma unroll
        for (int half = 0; half < HALVES; half++) fresh_values.piece[i][half] = scaled(fresh_values.piece[i][half], factors[i]);
    }
    if (TIGHT) norm = load_vector(common[role.is_key], quarter), angles = load_vector(common[2 + role.fresh], quarter);
    Vector query = prepare(scaled(raw, factors[role.fresh ? COUNT - 1 : 0]), norm, angles, eps);
    if (role.is_key) store_vector(keys + offset(start + role.fresh), quarter, query);
    store_values(fresh_values, group, quarter, [&](int i) { return values + offset(start + i); });
    Vector fresh[COUNT];
    #pragma unroll
    for (int i = 0; i < COUNT; i++) fresh[i] = from_group(query, QUERIES + i, quarter);
    insert_keys(block, fresh, 0, start, group);
    insert_values(block, fresh_values, 0, start, quarter);
    if (group >= QUERIES) query = {};

    Softmax softmax;
    clear(softmax);
    attend(softmax, query, block, 0, start + role.fresh, quarter, scale, [] {});
    #pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        const int query_index = 2 * quarter + odd;
        const float total = __shfl_sync(ALL, softmax.total, 4 * query_index);
        if (query_index >= QUERIES) continue;
        bf16* target = out + ((size_t)(row * COUNT + query_index / GROUP) * GROUP * KV_HEADS + head * GROUP + query_index % GROUP) * D;
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            float result[8];
            gather(softmax, half, odd, result);
            #pragma unroll
            for (int i = 0; i < 8; i++) result[i] /= total;
            *(uint4*)(target + half * 64 + 8 * group) = pack(result);
        }
    }
}

#endif
