// Strides of a view that starts at the last row where the triangle is an upper one, which makes it
// a lower one.
struct Layout {
  int row;
  int column;
  bool along_rows;
};

inline Layout layout(uint row_stride, uint column_stride, bool reversed, bool both) {
  Layout made;
  made.row = reversed ? -int(row_stride) : int(row_stride);
  made.column = reversed && both ? -int(column_stride) : int(column_stride);
  made.along_rows = column_stride < row_stride;
  return made;
}

inline long offset(Layout of, uint row, uint column) {
  return long(row) * long(of.row) + long(column) * long(of.column);
}
