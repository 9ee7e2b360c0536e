// Runs a kernel of warpgroups and clusters on the CPU, one cluster after the other. Each thread is a fiber, and a random one
// is next; with every second seed warps rest now and then. What is asynchronous on a GPU happens at a random later time:
// copies and sends, products at the earliest or at their wait. A kernel that forgets a wait so computes something else with
// some seed, one that waits for ever is reported.

#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __syncwarp() emulator::meet_warp()
#define __syncthreads() emulator::meet("block", 0, emulator::threads_per_block)
#define __shfl_xor_sync(mask, value, distance) emulator::exchange(value, distance)
#define __shfl_sync(mask, value, lane) emulator::from_lane(value, lane)
#define __shfl_up_sync(mask, value, distance) emulator::from_below(value, distance)
#define __reduce_add_sync(mask, value) emulator::added(value)
#define __ballot_sync(mask, value) emulator::ballot(value)
#define __popc __builtin_popcount
#define threadIdx (emulator::now->index)
#define blockIdx (emulator::now->block->index)
#define gridDim (emulator::grid)
#define DYNAMIC_SHARED(name) unsigned char* const name = emulator::now->block->shared.data()

struct uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { int x, y; };
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
using std::max;
using std::min;

inline int atomicMin(int* place, int value) {
    const int before = *place;
    *place = min(before, value);
    return before;
}

inline unsigned __byte_perm(unsigned first, unsigned second, unsigned selectors) {
    const uint64_t bytes = (uint64_t)second << 32 | first;
    unsigned picked = 0;
    for (int i = 0; i < 4; i++) picked |= (unsigned)(bytes >> 8 * (selectors >> 4 * i & 7) & 0xff) << 8 * i;
    return picked;
}

namespace emulator {

constexpr int LANES = 32, STACK = 64 * 1024, BLOCK_BITS = 24, RARELY = 50, LONGEST_REST = 100;
constexpr unsigned PLACE = (1u << BLOCK_BITS) - 1;

// Threads that wait for each other, again and again.
struct Meeting {
    int arrived = 0, round = 0;
};

// A barrier in shared memory that threads and bytes arrive at, phase after phase.
struct Phases {
    int count = 0, arrived = 0, ended = 0;
    long bytes = 0;
    void check() {
        if (arrived == count && !bytes) arrived = 0, ended++;
    }
};

struct Product {
    int number;
    std::vector<float*> sums;                       // of each thread of the warpgroup
    std::vector<std::vector<unsigned>> left;        // the left operand of each thread, where registers hold it
    std::function<void(const Product&)> compute;
};

struct Block {
    Index index;
    int rank, running;                              // threads that have not ended
    std::vector<unsigned char> shared;
    std::map<unsigned, Phases> phases;
    std::map<std::pair<std::string, int>, Meeting> meetings;
    std::map<int, std::deque<Product>> products;    // by warpgroup, not yet computed
    std::map<int, unsigned> sent;
    std::map<int, std::vector<unsigned>> operands;
};

struct Thread {
    Index index;
    Block* block;
    ucontext_t context;
    std::vector<char> stack;
    bool is_done = false;
    int products = 0;                               // that it has issued
    std::vector<int> groups;                        // that number at the end of each group
    int cluster_round = 0;
    bool has_met_cluster = false;
    std::deque<std::vector<std::shared_ptr<bool>>> copying{{}};     // groups of its copies, and whether each is done
};

struct Copy {
    int delay;
    std::function<void()> run;
};

inline Thread* now;
inline std::vector<Block> blocks;
inline std::vector<Thread> threads;
inline std::deque<Copy> copies;
inline std::mt19937 random;
inline ucontext_t scheduler;
inline std::function<void()> kernel;
inline long progress;
inline bool may_rest;
inline std::string error;
inline Meeting cluster_meeting;
inline int num_exited, num_threads, threads_per_block;
inline Index grid;

inline void yield() { swapcontext(&now->context, &scheduler); }

template <class Done> void wait(Done done) {
    while (!done()) yield();
    progress++;
}

// A barrier of `threads` threads of this block, by name. Returns the round that ends when all have arrived.
inline int arrive(const char* name, int number, int threads) {
    Meeting& meeting = now->block->meetings[{name, number}];
    const int round = meeting.round;
    if (++meeting.arrived == threads) meeting.arrived = 0, meeting.round++;
    progress++;
    return round;
}

inline void meet(const char* name, int number, int threads) {
    const int round = arrive(name, number, threads);
    Meeting& meeting = now->block->meetings[{name, number}];
    wait([&] { return meeting.round > round; });
}

inline int warp() { return now->index.x / LANES; }
inline void meet_warp() { meet("warp", warp(), LANES); }

inline int first_of_warp() { return now->index.x / LANES * LANES; }

template <class T> T from_lane(T value, int lane) {
    static_assert(sizeof(T) == 4, "a register");
    std::memcpy(&now->block->sent[now->index.x], &value, 4);
    meet_warp();
    std::memcpy(&value, &now->block->sent[first_of_warp() + lane], 4);
    meet_warp();
    return value;
}

template <class T> T exchange(T value, int distance) { return from_lane(value, now->index.x % LANES ^ distance); }

template <class T> T from_below(T value, int distance) {
    const int lane = now->index.x % LANES;
    return from_lane(value, lane < distance ? lane : lane - distance);
}

template <class T> T added(T value) {
    for (int distance = 1; distance < LANES; distance *= 2) value += exchange(value, distance);
    return value;
}

inline unsigned ballot(bool value) {
    unsigned found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= from_lane((unsigned)value, lane) << lane;
    return found;
}

// The next product of this warpgroup: the first thread that comes issues it, each adds its registers. Then `issued`.
inline Product& next_product(float* sums) {
    auto& pending = now->block->products[warp() / 4];
    const int number = now->products++;
    if (pending.empty() || pending.back().number != number) pending.push_back({number, std::vector<float*>(128), {}, {}});
    pending.back().sums[now->index.x % 128] = sums;
    return pending.back();
}

inline void compute_issued(int end) {
    auto& pending = now->block->products[warp() / 4];
    for (; !pending.empty() && pending.front().number < end; pending.pop_front()) pending.front().compute(pending.front());
}

inline void issued() {
    const int group = warp() / 4;
    meet("issue", group, 128);
    if (now->index.x % 128 == 0 && random() % 2) compute_issued(now->products);
    meet("issued", group, 128);
}

inline void end_group_of_products() { now->groups.push_back(now->products); }

// Waits until at most `pending` groups are incomplete.
inline void await_products(int pending = 0) {
    const int group = warp() / 4, count = int(now->groups.size()) - pending;
    meet("wait", group, 128);
    compute_issued(!pending ? now->products : count > 0 ? now->groups[count - 1] : 0);
    meet("waited", group, 128);
}

// An address is a place in the shared memory of a block, with the block's rank above it, as on a GPU.
inline unsigned address(unsigned place, int rank) { return place | unsigned(rank) << BLOCK_BITS; }
inline Block& block_of(unsigned address) {
    Block& block = blocks.at(address >> BLOCK_BITS);
    if (!block.running) error = "the shared memory of a block that has ended";
    return block;
}
// Place of a barrier that only its own block prepares and waits at.
inline unsigned own_place(unsigned barrier) {
    if (&block_of(barrier) != now->block) throw std::out_of_range("a barrier of another block");
    return barrier & PLACE;
}
inline Phases& phases_of(unsigned barrier) { return block_of(barrier).phases.at(barrier & PLACE); }
inline unsigned char* memory(unsigned address) { return block_of(address).shared.data() + (address & PLACE); }

// Most copies end soon, one of `most` late.
inline void later(std::function<void()> run, int most = 16, int latest = 1000) {
    copies.push_back({int(random() % (random() % most ? 200 : latest)), std::move(run)});
}

inline void enter() {
    try {
        kernel();
    } catch (const std::exception& problem) {
        error = problem.what();
    }
    now->is_done = true;
    now->block->running--;
    num_exited++;
    progress++;
    swapcontext(&now->context, &scheduler);
}

inline void run_copies() {
    for (size_t i = 0; i < copies.size();) {
        if (copies[i].delay-- > 0) {
            i++;
            continue;
        }
        auto run = std::move(copies[i].run);
        copies.erase(copies.begin() + i);
        run();
        progress++;
    }
}

// Runs one cluster; false if it does not end.
inline bool run_cluster(int first_block, int size, int num_threads_of_block, int shared_bytes) {
    blocks.assign(size, {});
    threads.assign(size * num_threads_of_block, {});
    threads_per_block = num_threads_of_block;
    copies.clear();
    cluster_meeting = {}, num_exited = 0, num_threads = int(threads.size());
    for (int rank = 0; rank < size; rank++) {
        blocks[rank].index = {(first_block + rank) % grid.x, (first_block + rank) / grid.x}, blocks[rank].rank = rank;
        blocks[rank].running = num_threads_of_block;
        // Unwritten memory is not a number.
        blocks[rank].shared.assign(shared_bytes, 0xff);
        for (int i = 0; i < num_threads_of_block; i++) {
            Thread& thread = threads[rank * num_threads_of_block + i];
            thread.index.x = i, thread.block = &blocks[rank];
            thread.stack.resize(STACK);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data(), thread.context.uc_stack.ss_size = STACK;
            makecontext(&thread.context, enter, 0);
        }
    }
    long idle = 0;
    std::vector<int> rests(threads.size() / LANES);     // rounds that each warp still rests
    while (num_exited < num_threads) {
        const long before = progress;
        run_copies();
        if (may_rest) for (int& rest : rests) rest = rest ? rest - 1 : random() % RARELY ? 0 : random() % LONGEST_REST;
        const int start = random() % threads.size(), stride = random() % 2 ? 1 : -1;
        for (size_t i = 0; i < threads.size(); i++) {
            const size_t next = (start + stride * int(i) + threads.size()) % threads.size();
            now = &threads[next];
            if (!now->is_done && !rests[next / LANES] && random() % 4) swapcontext(&scheduler, &now->context);
            if (!error.empty()) return false;
        }
        idle = progress == before && copies.empty() ? idle + 1 : 0;
        if (idle > 2 * LONGEST_REST) {
            error = "the threads wait for each other";
            return false;
        }
    }
    for (Block& block : blocks)
        for (auto& [address, phases] : block.phases)
            if (phases.bytes) error = "a barrier expects more bytes, or has too many";
    return error.empty() && copies.empty();
}

// Runs all clusters of a grid, of blocks in so many lines; 0, or 1 and a line that says what is wrong.
inline int run_grid(int blocks, int cluster, int threads, int shared_bytes, int seed, std::function<void()> code, int lines = 1) {
    random.seed(seed);
    may_rest = seed % 2 == 0;
    grid = {blocks / lines, lines};
    error.clear();
    kernel = std::move(code);
    for (int i = 0; i < blocks; i += cluster) {
        // Also the last one first.
        const int first = seed % 4 < 2 ? i : blocks - cluster - i;
        if (!run_cluster(first, cluster, threads, shared_bytes)) {
            std::fprintf(stderr, "cluster %d: %s\n", first / cluster, error.c_str());
            return 1;
        }
    }
    return 0;
}

}  // namespace emulator
