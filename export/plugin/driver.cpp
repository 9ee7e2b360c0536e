#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace code2wav {
namespace {

Driver load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw std::runtime_error("code2wav: no CUDA driver");
  Driver found{};
  const auto find = [library](auto& target, const char* name) {
    target = reinterpret_cast<std::decay_t<decltype(target)>>(dlsym(library, name));
    if (target == nullptr) throw std::runtime_error(std::string("code2wav: the CUDA driver has no ") + name);
  };
  find(found.load, "cuModuleLoadData");
  find(found.unload, "cuModuleUnload");
  find(found.function, "cuModuleGetFunction");
  find(found.set_attribute, "cuFuncSetAttribute");
  find(found.allocate, "cuMemAlloc_v2");
  find(found.free, "cuMemFree_v2");
  find(found.clear, "cuMemsetD8_v2");
  find(found.upload, "cuMemcpyHtoD_v2");
  find(found.memory, "cuMemGetInfo_v2");
  find(found.launch, "cuLaunchKernel");
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver instance = load_driver();
  return instance;
}

void check(CudaResult result, const std::string& what) {
  if (result != 0) throw std::runtime_error("code2wav: " + what + ": CUDA error " + std::to_string(result));
}

}  // namespace code2wav
