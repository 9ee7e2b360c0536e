// The plugin's step for ctypes: what TensorRT's layer does with it, without TensorRT.
#include "step.h"

using Step = std::shared_ptr<code2wav::Step>;

extern "C" {

Step* open_step(const uint8_t* file, size_t size) {
  Step* step = nullptr;
  const auto failed = code2wav::status([&] {
    step = new Step(std::make_shared<code2wav::Step>(std::vector<uint8_t>(file, file + size)));
    (*step)->load();
  });
  return failed ? nullptr : step;
}
int run_step(const Step* step, int64_t rows, int64_t frames, void** inputs, void** outputs, void* workspace) {
  return code2wav::status([&] { (*step)->run(rows, frames, inputs, outputs, workspace, nullptr); });
}
uint64_t workspace_of(const Step* step, int64_t rows, int64_t frames) { return (*step)->programs.workspace(rows, frames); }
void close_step(Step* step) { delete step; }
}
