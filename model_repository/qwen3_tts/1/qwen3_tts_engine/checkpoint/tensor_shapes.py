"""Names and shapes of the released tensors (docs/model.md, Tensors), as functions of the configuration.

The loader requires exactly these, and the synthetic checkpoint writes exactly these.
"""

from qwen3_tts_engine.checkpoint.configs import (
    CONV_KERNEL,
    PRE_CONV_KERNEL,
    RESIDUAL_DILATIONS,
    CodecDecoderConfig,
    CodecEncoderConfig,
    ModelConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TransformerConfig,
)

TensorShapes = dict[str, tuple[int, ...]]

# Constants of the released classes.
CONVNEXT_EXPANSION = 4
TRANSPOSED_KERNEL_STRIDES = 2
DOWNSAMPLE_KERNEL = 4


def talker_shapes(config: ModelConfig) -> TensorShapes:
    """All tensors under `talker.`, including the code predictor."""
    talker = config.talker_config
    text, hidden = talker.text_hidden_size, talker.hidden_size
    model = _transformer(talker) | {
        "codec_embedding.weight": (talker.vocab_size, hidden),
        "text_embedding.weight": (talker.text_vocab_size, text),
    }
    return _under(
        "talker",
        _under("model", model)
        | _linear("text_projection.linear_fc1", text, text, bias=True)
        | _linear("text_projection.linear_fc2", hidden, text, bias=True)
        | _linear("codec_head", talker.vocab_size, hidden)
        | _under("code_predictor", _code_predictor(talker)),
    )


def speaker_encoder_shapes(config: SpeakerEncoderConfig) -> TensorShapes:
    """All tensors under `speaker_encoder.`, in Base checkpoints only."""
    channels, kernels = config.enc_channels, config.enc_kernel_sizes
    pooled = channels[-1]
    shapes = _conv("blocks.0.conv", channels[0], config.mel_dim, kernels[0])
    for i in range(1, len(channels) - 1):
        shapes |= _under(f"blocks.{i}", _squeeze_excitation_block(config, channels[i - 1], channels[i], kernels[i]))
    shapes |= _conv("mfa.conv", pooled, pooled, kernels[-1])
    shapes |= _conv("asp.tdnn.conv", config.enc_attention_channels, 3 * pooled, 1)
    shapes |= _conv("asp.conv", pooled, config.enc_attention_channels, 1)
    shapes |= _conv("fc", config.enc_dim, 2 * pooled, 1)
    return _under("speaker_encoder", shapes)


def codec_decoder_shapes(config: CodecDecoderConfig) -> TensorShapes:
    """All tensors under `decoder.` of the speech tokenizer."""
    shapes = _under("quantizer", _decoder_quantizer(config))
    shapes |= _conv("pre_conv.conv", config.latent_dim, config.codebook_dim, PRE_CONV_KERNEL)
    shapes |= _under("pre_transformer", _pre_transformer(config))
    for i, factor in enumerate(config.upsampling_ratios):
        shapes |= _under(f"upsample.{i}", _upsample(config.latent_dim, factor))
    return _under("decoder", shapes | _under("decoder", _wave_decoder(config)))


def codec_encoder_shapes(config: CodecEncoderConfig) -> TensorShapes:
    """All tensors under `encoder.` of the speech tokenizer: Mimi's encoder, including unused quantizers."""
    shapes = _under("encoder", _seanet(config))
    for i in range(config.num_hidden_layers):
        shapes |= _under(f"encoder_transformer.layers.{i}", _encoder_layer(config))
    shapes |= _conv("downsample.conv", config.hidden_size, config.hidden_size, DOWNSAMPLE_KERNEL, bias=False)
    semantic = config.num_semantic_quantizers
    for name, count in (("semantic", semantic), ("acoustic", config.num_quantizers - semantic)):
        shapes |= _under(f"quantizer.{name}_residual_vector_quantizer", _encoder_quantizer(config, count))
    return _under("encoder", shapes)


def _under(prefix: str, shapes: TensorShapes) -> TensorShapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _linear(name: str, outputs: int, inputs: int, *, bias: bool = False) -> TensorShapes:
    return _weight(name, (outputs, inputs), outputs if bias else None)


def _conv(name: str, outputs: int, inputs: int, kernel: int, *, bias: bool = True) -> TensorShapes:
    return _weight(name, (outputs, inputs, kernel), outputs if bias else None)


def _transposed(name: str, inputs: int, outputs: int, kernel: int) -> TensorShapes:
    return _weight(name, (inputs, outputs, kernel), outputs)


def _norm(name: str, size: int) -> TensorShapes:
    return _weight(name, (size,), size)


def _weight(name: str, shape: tuple[int, ...], bias: int | None) -> TensorShapes:
    weight: TensorShapes = {f"{name}.weight": shape}
    return weight if bias is None else weight | {f"{name}.bias": (bias,)}


def _transformer(config: TransformerConfig) -> TensorShapes:
    shapes: TensorShapes = {}
    for i in range(config.num_hidden_layers):
        norms = {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
        layer = _attention_and_norms(config.hidden_size, config.query_size, config.key_value_size) | norms
        shapes |= _under(f"layers.{i}", layer | _gated_mlp(config.hidden_size, config.intermediate_size))
    return shapes | {"norm.weight": (config.hidden_size,)}


def _attention_and_norms(hidden: int, query: int, key_value: int) -> TensorShapes:
    shapes: TensorShapes = {f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    for name, outputs, inputs in (("q", query, hidden), ("k", key_value, hidden), ("v", key_value, hidden)):
        shapes |= _linear(f"self_attn.{name}_proj", outputs, inputs)
    return shapes | _linear("self_attn.o_proj", hidden, query)


def _gated_mlp(hidden: int, intermediate: int) -> TensorShapes:
    return (
        _linear("mlp.gate_proj", intermediate, hidden)
        | _linear("mlp.up_proj", intermediate, hidden)
        | _linear("mlp.down_proj", hidden, intermediate)
    )


def _code_predictor(talker: TalkerConfig) -> TensorShapes:
    predictor = talker.code_predictor_config
    shapes = _under("model", _transformer(predictor))
    for i in range(talker.num_code_groups - 1):
        # Embeddings have the talker's width, since they also feed its next step.
        shapes[f"model.codec_embedding.{i}.weight"] = (predictor.vocab_size, talker.hidden_size)
        shapes |= _linear(f"lm_head.{i}", predictor.vocab_size, predictor.hidden_size)
    if talker.hidden_size != predictor.hidden_size:
        shapes |= _linear("small_to_mtp_projection", predictor.hidden_size, talker.hidden_size, bias=True)
    return shapes


def _squeeze_excitation_block(config: SpeakerEncoderConfig, inputs: int, outputs: int, kernel: int) -> TensorShapes:
    part = outputs // config.enc_res2net_scale
    shapes = _conv("tdnn1.conv", outputs, inputs, 1)
    for i in range(config.enc_res2net_scale - 1):
        shapes |= _conv(f"res2net_block.blocks.{i}.conv", part, part, kernel)
    shapes |= _conv("tdnn2.conv", outputs, outputs, 1)
    shapes |= _conv("se_block.conv1", config.enc_se_channels, outputs, 1)
    return shapes | _conv("se_block.conv2", outputs, config.enc_se_channels, 1)


def _decoder_quantizer(config: CodecDecoderConfig) -> TensorShapes:
    outer, inner = config.codebook_dim, config.codebook_dim // 2
    shapes: TensorShapes = {}
    for name, count in (("rvq_first", 1), ("rvq_rest", config.num_quantizers - 1)):
        shapes |= _conv(f"{name}.input_proj", inner, outer, 1, bias=False)
        shapes |= _conv(f"{name}.output_proj", outer, inner, 1, bias=False)
        for i in range(count):
            codebook = f"{name}.vq.layers.{i}._codebook"
            shapes[f"{codebook}.cluster_usage"] = (config.codebook_size,)
            shapes[f"{codebook}.embedding_sum"] = (config.codebook_size, inner)
    return shapes


def _pre_transformer(config: CodecDecoderConfig) -> TensorShapes:
    hidden, head = config.hidden_size, config.head_dim
    query, key_value = config.num_attention_heads * head, config.num_key_value_heads * head
    scales: TensorShapes = {f"{name}_layer_scale.scale": (hidden,) for name in ("self_attn", "mlp")}
    shapes: TensorShapes = {"norm.weight": (hidden,)}
    for i in range(config.num_hidden_layers):
        layer = _attention_and_norms(hidden, query, key_value) | _gated_mlp(hidden, config.intermediate_size)
        shapes |= _under(f"layers.{i}", layer | scales)
    shapes |= _linear("input_proj", hidden, config.latent_dim, bias=True)
    return shapes | _linear("output_proj", config.latent_dim, hidden, bias=True)


def _upsample(channels: int, factor: int) -> TensorShapes:
    wide = CONVNEXT_EXPANSION * channels
    convnext = (
        _conv("dwconv.conv", channels, 1, CONV_KERNEL)
        | _norm("norm", channels)
        | _linear("pwconv1", wide, channels, bias=True)
        | _linear("pwconv2", channels, wide, bias=True)
        | {"gamma": (channels,)}
    )
    return _transposed("0.conv", channels, channels, factor) | _under("1", convnext)


def _wave_decoder(config: CodecDecoderConfig) -> TensorShapes:
    channels = config.decoder_dim
    shapes = _conv("0.conv", channels, config.latent_dim, CONV_KERNEL)
    for i, rate in enumerate(config.upsample_rates, start=1):
        shapes |= _snake(f"{i}.block.0", channels)
        shapes |= _transposed(f"{i}.block.1.conv", channels, channels // 2, TRANSPOSED_KERNEL_STRIDES * rate)
        channels //= 2
        for j in range(len(RESIDUAL_DILATIONS)):
            shapes |= _under(f"{i}.block.{2 + j}", _residual_unit(channels))
    last = len(config.upsample_rates) + 1
    return shapes | _snake(f"{last}", channels) | _conv(f"{last + 1}.conv", 1, channels, CONV_KERNEL)


def _residual_unit(channels: int) -> TensorShapes:
    return (
        _snake("act1", channels)
        | _conv("conv1.conv", channels, channels, CONV_KERNEL)
        | _snake("act2", channels)
        | _conv("conv2.conv", channels, channels, 1)
    )


def _snake(name: str, channels: int) -> TensorShapes:
    return {f"{name}.alpha": (channels,), f"{name}.beta": (channels,)}


def _seanet(config: CodecEncoderConfig) -> TensorShapes:
    channels, layer = config.num_filters, 0
    shapes = _conv("layers.0.conv", channels, 1, config.kernel_size)
    for stride in reversed(config.upsampling_ratios):
        for _ in range(config.num_residual_layers):
            layer += 1
            narrow = channels // config.compress
            shapes |= _conv(f"layers.{layer}.block.1.conv", narrow, channels, config.residual_kernel_size)
            shapes |= _conv(f"layers.{layer}.block.3.conv", channels, narrow, 1)
        layer += 2  # skips an activation without weights
        shapes |= _conv(f"layers.{layer}.conv", 2 * channels, channels, 2 * stride)
        channels *= 2
    return shapes | _conv(f"layers.{layer + 2}.conv", config.hidden_size, channels, config.last_kernel_size)


def _encoder_layer(config: CodecEncoderConfig) -> TensorShapes:
    hidden, head = config.hidden_size, config.head_dim
    shapes = _attention_and_norms(hidden, config.num_attention_heads * head, config.num_key_value_heads * head)
    shapes |= _norm("input_layernorm", hidden) | _norm("post_attention_layernorm", hidden)
    shapes |= _linear("mlp.fc1", config.intermediate_size, hidden)
    shapes |= _linear("mlp.fc2", hidden, config.intermediate_size)
    return shapes | {f"{name}_layer_scale.scale": (hidden,) for name in ("self_attn", "mlp")}


def _encoder_quantizer(config: CodecEncoderConfig, count: int) -> TensorShapes:
    inner = config.vector_quantization_hidden_dimension
    shapes = _conv("input_proj", inner, config.hidden_size, 1, bias=False)
    shapes |= _conv("output_proj", config.hidden_size, inner, 1, bias=False)
    for i in range(count):
        shapes[f"layers.{i}.codebook.initialized"] = (1,)
        shapes[f"layers.{i}.codebook.cluster_usage"] = (config.codebook_size,)
        shapes[f"layers.{i}.codebook.embed_sum"] = (config.codebook_size, config.codebook_dim)
    return shapes
