#include "step.h"

#include <stdexcept>

namespace code2wav {
namespace {

// FP16.
constexpr uint64_t kElementBytes = 2;
// Shared memory that a launch may use without opting in.
constexpr uint32_t kDefaultShared = 48 * 1024;

std::string shape(int64_t rows, int64_t frames) { return std::to_string(rows) + " x " + std::to_string(frames); }

}  // namespace

void Step::load() {
  std::call_once(loaded_, [this] {
    const Driver& cuda = driver();
    for (const auto& kernel : programs.kernels) {
      check(cuda.load(&modules_.emplace_back(), kernel.cubin.data()), kernel.name);
      CudaFunction& function = functions_.emplace_back();
      check(cuda.function(&function, modules_.back(), kernel.name.c_str()), kernel.name);
      if (kernel.shared > kDefaultShared)
        check(cuda.set_attribute(function, kMaxDynamicSharedMemory, static_cast<int>(kernel.shared)), kernel.name);
    }
    check(cuda.allocate(&constants_, programs.constants_size), "constants");
    check(cuda.upload(constants_, programs.constants, programs.constants_size), "constants");
    rows_.allocate(programs.rows, programs.public_rows, programs.state_size * kElementBytes);
  });
}

Step::~Step() {
  for (auto module : modules_) driver().unload(module);
  if (constants_ != 0) driver().free(constants_);
}

void Step::run(int64_t rows, int64_t frames, const void* const* inputs, void* const* outputs, void* workspace,
               CudaStream stream) const {
  const Program* program = programs.find(rows, frames);
  if (program == nullptr) throw std::runtime_error("code2wav: the plan was not built for " + shape(rows, frames));
  const void* buffers[] = {inputs[0], inputs[1], outputs[0], workspace};
  uint64_t bases[NUMBER + 1] = {};
  for (int base = CODES; base <= WORKSPACE; ++base) bases[base] = reinterpret_cast<uint64_t>(buffers[base]);
  bases[CONSTANTS] = constants_;
  bases[ADDRESSES] = rows_.addresses();
  bases[KEYS] = rows_.keys();
  for (const auto& found : program->launches) launch(found, bases, stream);
}

void Step::launch(const Launch& launch, const uint64_t* bases, CudaStream stream) const {
  const Kernel& kernel = programs.kernels[launch.kernel];
  // Numbers occupy the low end of their eight bytes. Triton's kernels take two more pointers, to scratch memory, which
  // ours do not use.
  std::vector<uint64_t> values(launch.arguments.size() + 2);
  std::vector<void*> pointers;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i < launch.arguments.size())
      values[i] = bases[launch.arguments[i].base] + static_cast<uint64_t>(launch.arguments[i].value);
    pointers.push_back(&values[i]);
  }
  check(driver().launch(functions_[launch.kernel], launch.grid[0], launch.grid[1], launch.grid[2], kernel.threads, 1, 1,
                        kernel.shared, stream, pointers.data(), nullptr),
        kernel.name);
}

}  // namespace code2wav
