// The emulated part of the header of that name. A wait for all but some products waits for all.
#pragma once
#include "products.cuh"

template <int PENDING> void wait_for_products() { emulator::await_products(); }
