// The part of CUDA's driver API that launches kernels, loaded at run time: every machine with TensorRT has the driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// CUDA's own type, so in the global namespace: in ours it would be a distinct type where CUDA is not included.
struct CUstream_st;

namespace code2wav {

// Declared as in cuda.h.
using CudaResult = int;
using CudaModule = struct CudaModuleObject*;
using CudaFunction = struct CudaFunctionObject*;
using CudaStream = CUstream_st*;
using DeviceAddress = unsigned long long;
constexpr int kMaxDynamicSharedMemory = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct Driver {
  CudaResult (*load)(CudaModule*, const void* image);
  CudaResult (*unload)(CudaModule);
  CudaResult (*function)(CudaFunction*, CudaModule, const char* name);
  CudaResult (*set_attribute)(CudaFunction, int attribute, int value);
  CudaResult (*allocate)(DeviceAddress*, size_t size);
  CudaResult (*free)(DeviceAddress);
  CudaResult (*clear)(DeviceAddress, unsigned char value, size_t size);
  CudaResult (*upload)(DeviceAddress, const void* data, size_t size);
  CudaResult (*memory)(size_t* free, size_t* total);
  CudaResult (*launch)(CudaFunction, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared, CudaStream, void** arguments, void** extra);
};

// Throws std::runtime_error without a driver.
const Driver& driver();

// Throws std::runtime_error, which names `what` failed, unless the result is success.
void check(CudaResult result, const std::string& what);

}  // namespace code2wav
