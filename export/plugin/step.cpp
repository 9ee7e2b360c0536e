#include "step.h"

#include <algorithm>
#include <stdexcept>

namespace code2wav {
namespace {

std::mutex steps_mutex;
std::vector<std::weak_ptr<Step>> steps;

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
  });
}

Step::~Step() {
  for (auto module : modules_) driver().unload(module);
  if (constants_ != 0) driver().free(constants_);
}

std::shared_ptr<Step> shared_step(std::vector<uint8_t> file) {
  const std::lock_guard<std::mutex> lock(steps_mutex);
  steps.erase(std::remove_if(steps.begin(), steps.end(), [](const auto& step) { return step.expired(); }), steps.end());
  for (const auto& known : steps)
    if (auto step = known.lock(); step && step->programs.file == file) return step;
  auto step = std::make_shared<Step>(std::move(file));
  steps.push_back(step);
  return step;
}

void Step::run(int64_t rows, int64_t frames, const void* const* inputs, void* const* outputs, void* workspace,
               CudaStream stream) const {
  const Program* program = programs.find(rows, frames);
  if (program == nullptr) throw std::runtime_error("code2wav: the plan was not built for " + shape(rows, frames));
  const void* buffers[] = {inputs[0], inputs[1], inputs[2], outputs[0], outputs[1], workspace};
  uint64_t bases[NUMBER + 1] = {};
  for (int base = CODES; base <= WORKSPACE; ++base) bases[base] = reinterpret_cast<uint64_t>(buffers[base]);
  bases[CONSTANTS] = constants_;
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
