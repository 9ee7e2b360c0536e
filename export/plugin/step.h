// The step and the rows of states on the GPU, shared by all execution contexts of a plan.
#pragma once

#include <memory>
#include <mutex>

#include "driver.h"
#include "program.h"
#include "rows.h"

namespace code2wav {

class Step {
 public:
  explicit Step(std::vector<uint8_t> file) : programs(std::move(file)) {}
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Loads kernels and constants into the current CUDA context and allocates the rows, once. Throws std::runtime_error.
  void load();

  // Launches one call: codes and places in, PCM out. Throws std::runtime_error for a shape that was not recorded, and
  // for driver errors.
  void run(int64_t rows, int64_t frames, const void* const* inputs, void* const* outputs, void* workspace,
           CudaStream stream) const;

  const Programs programs;

 private:
  void launch(const Launch& launch, const uint64_t* bases, CudaStream stream) const;

  std::once_flag loaded_;
  std::vector<CudaModule> modules_;
  std::vector<CudaFunction> functions_;
  DeviceAddress constants_ = 0;
  Rows rows_;
};

// Runs `work` and returns 0; prints an exception and returns 1, as TensorRT's interfaces require.
template <typename Work>
int status(const Work& work) noexcept;

}  // namespace code2wav

#include <cstdio>
#include <exception>

template <typename Work>
int code2wav::status(const Work& work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
