// Common to the plugin in all TensorRT versions: codes and places in, PCM out.
#pragma once

#include <NvInfer.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "step.h"

namespace code2wav {

using namespace nvinfer1;

constexpr char kName[] = "Code2Wav", kVersion[] = "2";
constexpr int32_t kOutputs = 1;
// Type of all inputs and outputs. TensorRT has no INT16, so each element of the output holds two samples.
constexpr DataType kType = DataType::kINT32;
constexpr uint32_t kSamplesPerElement = 2;
// A plugin is created from one field: the path of a program, or the program itself, as serialized in a plan.
constexpr char kPathField[] = "path", kFileField[] = "file";

struct Fields {
  Fields(char const* name, void const* data, int32_t size) : field{name, data, PluginFieldType::kCHAR, size} {}
  Fields(const Fields& other) : field(other.field) {}
  Fields& operator=(const Fields& other) {
    field = other.field;
    return *this;
  }

  PluginField field;
  PluginFieldCollection collection{1, &field};
};

inline std::vector<uint8_t> read_field(const PluginFieldCollection& fields) {
  if (fields.nbFields != 1) throw std::runtime_error("code2wav: one field expected");
  const PluginField& field = fields.fields[0];
  const auto* data = static_cast<char const*>(field.data);
  if (std::strcmp(field.name, kFileField) == 0) return {data, data + field.length};
  const std::string path(data, static_cast<size_t>(field.length));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("code2wav: " + path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// A new plugin from the program that `read` returns; nullptr if that fails.
template <typename Plugin, typename Read>
Plugin* make(const Read& read) noexcept {
  Plugin* plugin = nullptr;
  status([&] { plugin = new Plugin(std::make_shared<Step>(read())); });
  return plugin;
}

inline DimsExprs pcm_shape(const Step& step, const DimsExprs& codes, IExprBuilder& builder) {
  const auto* samples = builder.constant(static_cast<int32_t>(step.programs.samples_per_frame / kSamplesPerElement));
  DimsExprs shape;
  shape.nbDims = 2;
  shape.d[0] = codes.d[0];
  shape.d[1] = builder.operation(DimensionOperation::kPROD, *codes.d[1], *samples);
  return shape;
}

inline bool is_supported(const PluginTensorDesc& tensor) {
  return tensor.format == TensorFormat::kLINEAR && tensor.type == kType;
}

inline size_t workspace(const Step& step, const Dims& codes) { return step.programs.workspace(codes.d[0], codes.d[1]); }

inline int run(const Step& step, const Dims& codes, void const* const* inputs, void* const* outputs, void* workspace,
               cudaStream_t stream) noexcept {
  return status([&] { step.run(codes.d[0], codes.d[1], inputs, outputs, workspace, stream); });
}

}  // namespace code2wav
