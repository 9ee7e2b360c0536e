// Stands in for libcuda.so.1: "device" memory is the host's, and launches are recorded instead of run.
// A kernel's image is a text, "<tag>#<number of parameters>".
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

static std::ostringstream launches;
static std::string text;
static size_t total_memory = size_t{1} << 30;

extern "C" {

int cuModuleLoadData(const char** module, const void* image) {
  *module = strdup(static_cast<const char*>(image));
  return 0;
}
int cuModuleUnload(char* module) {
  free(module);
  return 0;
}
int cuModuleGetFunction(const char** function, const char* module, const char*) {
  *function = module;
  return 0;
}
int cuFuncSetAttribute(const char* function, int attribute, int value) {
  launches << "attribute " << function << ' ' << attribute << ' ' << value << '\n';
  return 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  *address = reinterpret_cast<uint64_t>(malloc(size));
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
  memset(reinterpret_cast<void*>(address), value, size);
  launches << "zeros " << address << ' ' << size << '\n';
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t address, const void* data, size_t size) {
  memcpy(reinterpret_cast<void*>(address), data, size);
  launches << "upload " << address << ' ' << size << '\n';
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = total_memory;
  return 0;
}
int cuLaunchKernel(const char* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned shared, void*, void** parameters, void**) {
  launches << "launch " << function << ' ' << x << ' ' << y << ' ' << z << ' ' << threads << ' ' << shared;
  const long count = atol(strchr(function, '#') + 1);
  for (long i = 0; i < count + 2; ++i) launches << ' ' << *static_cast<int64_t*>(parameters[i]);
  launches << '\n';
  return 0;
}
void set_total_memory(size_t size) { total_memory = size; }
const char* take_launches() {
  text = launches.str();
  launches.str("");
  return text.c_str();
}
}
