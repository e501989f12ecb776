// Times of the parts of the job, each alone and the copies in both directions at once.
#pragma once

#include <vector>

#include "core/cuda/device.h"
#include "lab/streams/arrays.h"
#include "lab/streams/streams.h"

namespace mr::streams {

class PartsMeter {
  public:
    PartsMeter(Arrays& arrays, int repetitions);

    // Iterations for which the kernel takes as long as a copy in.
    int calibrate();
    // Adds samples.
    void measure(int iterations);
    // Medians of all samples.
    Parts parts() const;

  private:
    double seconds_of_copy_in();
    double seconds_of_compute(int iterations);
    double seconds_of_copy_out();
    double seconds_of_copy_in_on_streams();
    void both_directions(bool keep);

    Arrays& arrays_;
    int repetitions_;
    cuda::Stream in_, out_, third_;
    std::vector<double> copy_in_, compute_, copy_out_, copy_in_streams_, duplex_in_, duplex_out_;
    Timeline duplex_;  // of the last samples
};

}  // namespace mr::streams
