// The step as a layer of TensorRT 10 and 11 (IPluginV3).
#include <NvInferVersion.h>
#if NV_TENSORRT_MAJOR >= 10
#include <NvInfer.h>

#include "layer.h"

namespace code2wav {
namespace {

class Plugin final : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
 public:
  explicit Plugin(std::shared_ptr<Step> step) : step_(std::move(step)) {}

  IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
      case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
      case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
      case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }

  int32_t getOutputDataTypes(DataType* types, int32_t, DataType const*, int32_t) const noexcept override {
    types[0] = kType;
    return 0;
  }

  int32_t getOutputShapes(DimsExprs const* in, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t,
                          IExprBuilder& builder) noexcept override {
    out[0] = pcm_shape(*step_, in[CODES], builder);
    return 0;
  }

  bool supportsFormatCombination(int32_t at, DynamicPluginTensorDesc const* tensors, int32_t, int32_t) noexcept override {
    return is_supported(tensors[at].desc);
  }

  size_t getWorkspaceSize(DynamicPluginTensorDesc const* in, int32_t, DynamicPluginTensorDesc const*,
                          int32_t) const noexcept override {
    return workspace(*step_, in[CODES].max);
  }

  int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*, void const* const* inputs, void* const* outputs,
                  void* workspace, cudaStream_t stream) noexcept override {
    return run(*step_, in[CODES].dims, inputs, outputs, workspace, stream);
  }

  IPluginV3* attachToContext(IPluginResourceContext*) noexcept override {
    return status([this] { step_->load(); }) == 0 ? clone() : nullptr;
  }

  PluginFieldCollection const* getFieldsToSerialize() noexcept override {
    const auto& file = step_->programs.file;
    fields_ = Fields{kFileField, file.data(), static_cast<int32_t>(file.size())};
    return &fields_.collection;
  }

  int32_t configurePlugin(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*,
                          int32_t) noexcept override {
    return 0;
  }
  int32_t onShapeChange(PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) noexcept override { return 0; }
  IPluginV3* clone() noexcept override { return new Plugin(step_); }
  int32_t getNbOutputs() const noexcept override { return kOutputs; }
  char const* getPluginName() const noexcept override { return kName; }
  char const* getPluginVersion() const noexcept override { return kVersion; }
  char const* getPluginNamespace() const noexcept override { return ""; }

 private:
  std::shared_ptr<Step> step_;
  Fields fields_{kFileField, nullptr, 0};
};

class Creator final : public IPluginCreatorV3One {
 public:
  IPluginV3* createPlugin(char const*, PluginFieldCollection const* fields, TensorRTPhase) noexcept override {
    return make<Plugin>([fields] { return read_field(*fields); });
  }

  PluginFieldCollection const* getFieldNames() noexcept override { return &fields_.collection; }
  char const* getPluginName() const noexcept override { return kName; }
  char const* getPluginVersion() const noexcept override { return kVersion; }
  char const* getPluginNamespace() const noexcept override { return ""; }

 private:
  Fields fields_{kPathField, nullptr, 0};
};

REGISTER_TENSORRT_PLUGIN(Creator);

}  // namespace
}  // namespace code2wav
#endif
