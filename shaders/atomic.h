// Counters that the threads of a group share. Integers alone: their sums are the same in any order.

inline void clear(threadgroup atomic_uint* counter) {
  atomic_store_explicit(counter, 0u, memory_order_relaxed);
}
inline void add(threadgroup atomic_uint* counter, uint count) {
  atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
}
inline uint counted(threadgroup atomic_uint* counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}
inline void raise(threadgroup atomic_uint* counter, uint least) {
  atomic_fetch_max_explicit(counter, least, memory_order_relaxed);
}
