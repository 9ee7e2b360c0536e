// The states of streams in GPU memory, with the tables that code2wav_step.kernels.places opens them by.
#pragma once

#include <cstdint>

#include "driver.h"

namespace code2wav {

// Environment variable: the part of the GPU that this server may take, as for the talker.
constexpr char kMemoryShare[] = "QWEN3_TTS_GPU_MEMORY_SHARE";
// Rows take at most this part of it (qwen3_tts_engine/codec/contract.py, plan_rows).
constexpr uint64_t kRowsPart = 32;

class Rows {
 public:
  Rows() = default;
  ~Rows();
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  // Allocates zeros for as many of `count` rows as their part of memory allows: the first ones, and the last
  // `public_count`. Throws std::runtime_error.
  void allocate(uint32_t count, uint32_t public_count, uint64_t state_bytes);

  // int64 [count + 1]: addresses of the rows, 0 for one without memory, and of the state that takes writes to no row.
  DeviceAddress addresses() const { return addresses_; }
  // int32 [count]: owners of the rows, 0 for none.
  DeviceAddress keys() const { return keys_; }

 private:
  DeviceAddress states_ = 0, addresses_ = 0, keys_ = 0;
};

}  // namespace code2wav
