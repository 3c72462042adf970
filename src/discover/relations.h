#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace ddc {

/// A linear relation between columns, sum_k coefficients[k] * column[columns[k]] = 0.
struct Relation {
  std::vector<size_t> columns;
  /// The smallest is 1 in absolute value.
  std::vector<double> coefficients;
};

struct RelationOptions {
  /// Singular values of the columns (each of unit norm) below this are zero.
  double tolerance = 1e-9;
  /// Columns are looked at together if they are not further apart than this in `position`, and all of
  /// them once more in the end if there are few enough.
  size_t window = 48;
  size_t few = 700;
};

/// The relations between the columns of [rows, columns] (float64) as a sparse basis of their null
/// space: of all bases the one whose relations share as few columns as possible, so that a relation
/// is about one layer and not a mixture of several.
///
/// The projector on a null space falls into blocks, and the finest blocks are the finest direct sum
/// that the null space is: relations of different blocks have no column in common. Within a block of
/// dimension one the relation is unique up to scale; in larger ones those with the smallest support
/// are taken, where columns that only occur together count once.
///
/// `position` orders the columns. Columns that are zero take part in no relation.
std::vector<Relation> sparse_relations(const at::Tensor& columns,
                                       const std::vector<size_t>& position,
                                       const RelationOptions& options = {});

/// By how much coefficients of columns of unit norm may be off that ought to be simple numbers, where
/// charges below `zero` are: small columns beside large ones lose digits.
double coefficient_tolerance(double zero);

/// An orthonormal basis of the null space, [columns, dimension], of columns of unit norm.
at::Tensor null_basis(const at::Tensor& columns, double tolerance);

}  // namespace ddc
