// The step's launches for each shape, written by export/tensorrt/step_program.py.
//
// Little-endian, in order:
//   "C2WSTEP2", u32 samples per frame, u32 rows, u32 public rows, u64 elements per state
//   u64 size, the constants
//   u32 count, kernels:  u32 size, name; u32 size, cubin; u32 threads; u32 bytes of shared memory
//   u32 count, programs: u32 rows, u32 frames, u64 bytes of workspace, u32 count,
//     launches: u32 kernel, u32 grid x, y, z, u32 count, arguments: u8 base, i64 offset (or number)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace code2wav {

// The memory that an argument is an offset into; NUMBER marks an immediate value.
enum Base : uint8_t { CODES, PLACES, PCM, WORKSPACE, CONSTANTS, ADDRESSES, KEYS, NUMBER };

struct Argument {
  uint8_t base;
  int64_t value;
};

struct Launch {
  uint32_t kernel;
  uint32_t grid[3];
  std::vector<Argument> arguments;
};

struct Program {
  uint64_t workspace;
  std::vector<Launch> launches;
};

struct Kernel {
  std::string name;
  std::vector<uint8_t> cubin;
  uint32_t threads, shared;
};

class Programs {
 public:
  // Throws std::runtime_error if the file is truncated or has another format.
  explicit Programs(std::vector<uint8_t> file);

  // nullptr for a shape that was not recorded.
  const Program* find(int64_t rows, int64_t frames) const;
  // The largest of any shape up to this one.
  uint64_t workspace(int64_t rows, int64_t frames) const;

  const std::vector<uint8_t> file;
  uint32_t samples_per_frame = 0, rows = 0, public_rows = 0;
  uint64_t state_size = 0, constants_size = 0;
  const uint8_t* constants = nullptr;
  std::vector<Kernel> kernels;

 private:
  std::map<std::pair<int64_t, int64_t>, Program> programs_;
};

}  // namespace code2wav
