// The step as a layer of TensorRT 8 (IPluginV2DynamicExt).
#include <NvInferVersion.h>
#if NV_TENSORRT_MAJOR < 10
#include <NvInfer.h>

#include <cstring>

#include "layer.h"

namespace code2wav {
namespace {

class Plugin final : public IPluginV2DynamicExt {
 public:
  explicit Plugin(std::shared_ptr<Step> step) : step_(std::move(step)) {}

  DimsExprs getOutputDimensions(int32_t, DimsExprs const* in, int32_t, IExprBuilder& builder) noexcept override {
    return pcm_shape(*step_, in[CODES], builder);
  }

  bool supportsFormatCombination(int32_t at, PluginTensorDesc const* tensors, int32_t, int32_t) noexcept override {
    return is_supported(tensors[at]);
  }

  size_t getWorkspaceSize(PluginTensorDesc const* in, int32_t, PluginTensorDesc const*, int32_t) const noexcept override {
    return workspace(*step_, in[CODES].dims);
  }

  int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*, void const* const* inputs, void* const* outputs,
                  void* workspace, cudaStream_t stream) noexcept override {
    return run(*step_, in[CODES].dims, inputs, outputs, workspace, stream);
  }

  DataType getOutputDataType(int32_t, DataType const*, int32_t) const noexcept override { return kType; }

  int32_t initialize() noexcept override {
    return status([this] { step_->load(); });
  }

  size_t getSerializationSize() const noexcept override { return step_->programs.file.size(); }
  void serialize(void* buffer) const noexcept override {
    std::memcpy(buffer, step_->programs.file.data(), step_->programs.file.size());
  }

  void configurePlugin(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*,
                       int32_t) noexcept override {}
  void terminate() noexcept override {}
  IPluginV2DynamicExt* clone() const noexcept override { return new Plugin(*this); }
  void destroy() noexcept override { delete this; }
  int32_t getNbOutputs() const noexcept override { return kOutputs; }
  char const* getPluginType() const noexcept override { return kName; }
  char const* getPluginVersion() const noexcept override { return kVersion; }
  void setPluginNamespace(char const*) noexcept override {}
  char const* getPluginNamespace() const noexcept override { return ""; }

 private:
  std::shared_ptr<Step> step_;
};

class Creator final : public IPluginCreator {
 public:
  IPluginV2* createPlugin(char const*, PluginFieldCollection const* fields) noexcept override {
    return make<Plugin>([fields] { return read_field(*fields); });
  }

  IPluginV2* deserializePlugin(char const*, void const* data, size_t size) noexcept override {
    const auto* bytes = static_cast<uint8_t const*>(data);
    return make<Plugin>([=] { return std::vector<uint8_t>(bytes, bytes + size); });
  }

  PluginFieldCollection const* getFieldNames() noexcept override { return &fields_.collection; }
  char const* getPluginName() const noexcept override { return kName; }
  char const* getPluginVersion() const noexcept override { return kVersion; }
  void setPluginNamespace(char const*) noexcept override {}
  char const* getPluginNamespace() const noexcept override { return ""; }

 private:
  Fields fields_{kPathField, nullptr, 0};
};

REGISTER_TENSORRT_PLUGIN(Creator);

}  // namespace
}  // namespace code2wav
#endif
