#include "ddc/testbeds/teacher_student.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/testbeds.h"

namespace ddc::testbeds {
namespace {

using tests::expect_error;

TEST(ReluTeacherStudent, HasThePapersShapes) {
  const auto bed = relu_teacher_student();
  const auto params = bed.init(0, at::kFloat);
  ASSERT_EQ(params.size(), 2u);
  EXPECT_EQ(params["layers.0.weight"].tensor.sizes(), at::IntArrayRef({16, 8}));
  EXPECT_EQ(params["layers.1.weight"].tensor.sizes(), at::IntArrayRef({4, 16}));
  const auto batch = bed.batch(0, at::kFloat);
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({128, 8}));
  EXPECT_EQ(batch.targets.sizes(), at::IntArrayRef({128, 4}));
}

TEST(ReluTeacherStudent, GaugeIsOneFactorOrOnePerUnit) {
  const auto whole = relu_teacher_student();
  const auto params = whole.init(0, at::kDouble);
  ASSERT_EQ(whole.gauges(params).size(), 1u);
  EXPECT_EQ(dimension(whole.gauges(params)[0], params), 1);
  EXPECT_EQ(dimension(relu_teacher_student({.per_channel = true}).gauges(params)[0], params), 16);
}

TEST(ReluTeacherStudent, StudentStartsAtHalfTheTeachersScale) {
  const auto student = relu_teacher_student({.d_in = 64, .d_hidden = 64}).init(0, at::kDouble);
  EXPECT_NEAR(student["layers.0.weight"].tensor.std().item<double>(), 0.5, 0.02);
}

TEST(ReluTeacherStudent, DataDependOnTheDataSeedAlone) {
  const auto batch = relu_teacher_student({.data_seed = 1}).batch(0, at::kDouble);
  EXPECT_TRUE(at::equal(batch.targets,
                        relu_teacher_student({.data_seed = 1}).batch(9, at::kDouble).targets));
  EXPECT_FALSE(at::equal(batch.targets,
                         relu_teacher_student({.data_seed = 2}).batch(0, at::kDouble).targets));
}

TEST(NormTeacherStudent, HasThePapersShapesAndGauge) {
  const auto bed = norm_teacher_student();
  const auto params = bed.init(0, at::kDouble);
  ASSERT_EQ(params.size(), 2u);
  EXPECT_EQ(params["norm.weight"].tensor.sizes(), at::IntArrayRef({16}));
  EXPECT_EQ(params["readout.weight"].tensor.sizes(), at::IntArrayRef({8, 16}));
  ASSERT_EQ(bed.gauges(params).size(), 1u);
  EXPECT_EQ(dimension(bed.gauges(params)[0], params), 16);
}

TEST(NormTeacherStudent, GainsAreDrawnAroundOne) {
  const auto gain = norm_teacher_student({.d_in = 4096}).init(0, at::kDouble)["norm.weight"].tensor;
  EXPECT_NEAR(gain.mean().item<double>(), 1, 0.05);
  EXPECT_NEAR(gain.std().item<double>(), 0.5, 0.05);
}

TEST(TeacherStudent, BadSizesAreNamed) {
  expect_error([] { relu_teacher_student({.d_hidden = 0}); }, {"d_hidden", "0"});
  expect_error([] { norm_teacher_student({.samples = -3}); }, {"samples", "-3"});
}

}  // namespace
}  // namespace ddc::testbeds
