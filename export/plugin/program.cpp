#include "program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace code2wav {
namespace {

constexpr char kMagic[] = "C2WSTEP2";

class Reader {
 public:
  explicit Reader(const std::vector<uint8_t>& file) : file_(file) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }

  const uint8_t* take(uint64_t size) {
    if (size > file_.size() - at_) throw std::runtime_error("code2wav: the step's program is truncated");
    const uint8_t* found = file_.data() + at_;
    at_ += size;
    return found;
  }

 private:
  const std::vector<uint8_t>& file_;
  uint64_t at_ = 0;
};

Kernel read_kernel(Reader& reader) {
  Kernel kernel;
  auto size = reader.number<uint32_t>();
  kernel.name.assign(reinterpret_cast<const char*>(reader.take(size)), size);
  size = reader.number<uint32_t>();
  // Copied for the alignment that the driver requires of an image.
  const uint8_t* cubin = reader.take(size);
  kernel.cubin.assign(cubin, cubin + size);
  kernel.threads = reader.number<uint32_t>();
  kernel.shared = reader.number<uint32_t>();
  return kernel;
}

Launch read_launch(Reader& reader) {
  Launch launch;
  launch.kernel = reader.number<uint32_t>();
  for (auto& size : launch.grid) size = reader.number<uint32_t>();
  launch.arguments.resize(reader.number<uint32_t>());
  for (auto& argument : launch.arguments) {
    argument.base = reader.number<uint8_t>();
    argument.value = reader.number<int64_t>();
  }
  return launch;
}

}  // namespace

Programs::Programs(std::vector<uint8_t> bytes) : file(std::move(bytes)) {
  Reader reader(file);
  if (std::memcmp(reader.take(sizeof(kMagic) - 1), kMagic, sizeof(kMagic) - 1) != 0)
    throw std::runtime_error("code2wav: not a step program of this version");
  samples_per_frame = reader.number<uint32_t>();
  rows = reader.number<uint32_t>();
  public_rows = reader.number<uint32_t>();
  state_size = reader.number<uint64_t>();
  constants_size = reader.number<uint64_t>();
  constants = reader.take(constants_size);
  for (auto left = reader.number<uint32_t>(); left > 0; --left) kernels.push_back(read_kernel(reader));
  for (auto left = reader.number<uint32_t>(); left > 0; --left) {
    const auto rows = reader.number<uint32_t>(), frames = reader.number<uint32_t>();
    Program& program = programs_[{rows, frames}];
    program.workspace = reader.number<uint64_t>();
    for (auto launches = reader.number<uint32_t>(); launches > 0; --launches)
      program.launches.push_back(read_launch(reader));
  }
}

const Program* Programs::find(int64_t rows, int64_t frames) const {
  const auto found = programs_.find({rows, frames});
  return found == programs_.end() ? nullptr : &found->second;
}

uint64_t Programs::workspace(int64_t rows, int64_t frames) const {
  uint64_t largest = 0;
  for (const auto& [shape, program] : programs_)
    if (shape.first <= rows && shape.second <= frames) largest = std::max(largest, program.workspace);
  return largest;
}

}  // namespace code2wav
