#pragma once

#include <string>

#include "ddc/gauge/rescale.h"

namespace ddc {

/// Softmax cross-entropy does not see a constant that is added to every logit. For an unembedding
/// of shape [classes, d] the group R^d adds the same row to every row; for an output bias of shape
/// [classes] the group R adds a constant. A model with both has both gauges.
///
/// Broken by: an unembedding tied to the input embedding, soft-capped logits, a z-loss.
Gauge cross_entropy_shift(const NamedTensor& unembedding_or_bias, Layout layout = Layout::out_in,
                          std::string name = {});

/// A tensor to which the loss is blind altogether: the key bias of attention without rotary
/// embedding, which adds the same number to all scores of a query. Adam turns the rounding of its
/// zero gradient into steps of full size; bound, it stays where it is.
Gauge null_shift(const NamedTensor& tensor, std::string name = {});

}  // namespace ddc
