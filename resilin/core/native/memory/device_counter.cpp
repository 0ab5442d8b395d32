// Counts what a device's pool gives and gets back, exactly and without a call of Python's code at either: an allocator
// around that of CuPy's pool. The blocks stay the pool's.
#include "binding/array.hpp"
#include "binding/kernels.hpp"

#include <algorithm>
#include <memory>

namespace resilin {
namespace {

struct Figure {
    int64_t current = 0, peak = 0, taken = 0, freed = 0;

    void take(int64_t n) {
        current += n;
        taken += n;
        peak = std::max(peak, current);
    }
    void give(int64_t n) {
        current -= n;
        freed += n;
    }
    nb::tuple all() const { return nb::make_tuple(current, peak, taken, freed); }
};

// All are read and written with the GIL held.
struct Figures {
    Figure blocks, bytes, asked;
};

// What an array's memory names as its owner: the pool's block, until the array is gone.
struct Held {
    std::shared_ptr<Figures> figures; // arrays may outlive the counter
    nb::object block;
    int64_t bytes, asked;

    Held(std::shared_ptr<Figures> figures, nb::object block, int64_t bytes, int64_t asked)
        : figures(std::move(figures)), block(std::move(block)), bytes(bytes), asked(asked) {
        this->figures->blocks.take(1);
        this->figures->bytes.take(bytes);
        this->figures->asked.take(asked);
    }
    Held(const Held &) = delete;
    ~Held() {
        figures->blocks.give(1);
        figures->bytes.give(bytes);
        figures->asked.give(asked);
    }
};

class DeviceCounter {
public:
    // malloc: the pool's; memory and pointer: CuPy's UnownedMemory and MemoryPointer; full(size): called with the
    // pool's own error for an argument when it raises one of type `error`, to raise a better one
    DeviceCounter(nb::callable malloc, nb::callable memory, nb::callable pointer, nb::object error, nb::callable full)
        : malloc_(std::move(malloc)), memory_(std::move(memory)), pointer_(std::move(pointer)),
          error_(std::move(error)), full_(std::move(full)) {}

    nb::object allocate(int64_t size) {
        nb::object block;
        try {
            block = malloc_(size);
        } catch (nb::python_error &raised) {
            if (!raised.matches(error_)) throw;
            full_(size);
            throw;
        }
        nb::object of_block = block.attr("mem");
        const int64_t bytes = nb::cast<int64_t>(of_block.attr("size"));
        nb::object held = nb::cast(new Held(figures_, block, bytes, size), nb::rv_policy::take_ownership);
        nb::object device = of_block.attr("device_id");
        return pointer_(memory_(block.attr("ptr"), bytes, held, device), 0);
    }

    // (current, peak, taken, freed) of blocks, of their bytes, and of the bytes that were asked for
    nb::tuple figures() const { return nb::make_tuple(figures_->blocks.all(), figures_->bytes.all(), figures_->asked.all()); }

    void reset_peaks() {
        for (Figure *figure : {&figures_->blocks, &figures_->bytes, &figures_->asked}) figure->peak = figure->current;
    }

private:
    nb::callable malloc_, memory_, pointer_;
    nb::object error_;
    nb::callable full_;
    std::shared_ptr<Figures> figures_ = std::make_shared<Figures>();
};

} // namespace

void bind_device_counter(nb::module_ &m) {
    nb::class_<Held>(m, "DeviceBlock");
    nb::class_<DeviceCounter>(m, "DeviceCounter")
        .def(nb::init<nb::callable, nb::callable, nb::callable, nb::object, nb::callable>())
        .def("allocate", &DeviceCounter::allocate)
        .def("figures", &DeviceCounter::figures)
        .def("reset_peaks", &DeviceCounter::reset_peaks);
}

} // namespace resilin
