// result[i] := the i-th element of a tensor of four sides, counted row-major, one thread an
// element. The first side is of a size that need not be known.
template <typename T>
kernel void copy_strided(
    device const T* x [[buffer(0)]],
    device T* result [[buffer(1)]],
    constant uint& size1 [[buffer(2)]],
    constant uint& size2 [[buffer(3)]],
    constant uint& size3 [[buffer(4)]],
    constant long& stride0 [[buffer(5)]],
    constant long& stride1 [[buffer(6)]],
    constant long& stride2 [[buffer(7)]],
    constant long& stride3 [[buffer(8)]],
    uint i [[thread_position_in_grid]]) {
  const uint row3 = i / size3;
  const uint row2 = row3 / size2;
  const uint row1 = row2 / size1;
  const long of_outer = long(row1) * stride0 + long(row2 - row1 * size1) * stride1;
  const long of_inner = long(row3 - row2 * size2) * stride2 + long(i - row3 * size3) * stride3;
  result[i] = x[of_outer + of_inner];
}
