// Data-parallel training with ghost ranks: the exchange that TrainEngine gets. Gradients go to a
// GhostLink, or nowhere; a kernel may occupy multiprocessors meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/overlap/ghost_link.h"
#include "model/train/grad_exchange.h"

namespace mr::overlap {

// A kernel that occupies multiprocessors from the first gradients of a step to the last.
class Occupier {
  public:
    Occupier(const cuda::Stream& training, int multiprocessors);
    ~Occupier();
    Occupier(const Occupier&) = delete;
    Occupier& operator=(const Occupier&) = delete;

    void begin();
    void end();
    // Per block, over all launches. Nothing may be in flight.
    double held_seconds() const;

  private:
    const cuda::Stream& training_;
    const int multiprocessors_;
    // High priority: its blocks must start before those of the backward pass.
    cuda::Stream stream_{cuda::Stream::Priority::high};
    cuda::Event ready_;
    cuda::DeviceArena memory_;
    std::uint32_t* stop_ = nullptr;
    unsigned long long* held_ = nullptr;
    std::uint32_t number_ = 0;
};

class GhostExchange final : public model::GradExchange {
  public:
    GhostExchange(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

    // Null: none. Call between steps.
    void use(GhostLink* link) { link_ = link; }
    void occupy(Occupier* occupier) { occupier_ = occupier; }
    // What a step passed to add_up(), from note() on.
    void note() { noting_ = true; }
    std::vector<Gradient> noted();

    int rank() const override { return rank_; }
    int ranks() const override { return ranks_; }
    Ticket add_up(float* elements, const comm::Shards& shards, bool whole) override;
    void wait(Ticket ticket) override;
    void finish() override;
    // Ghosts contribute zeros.
    std::vector<double> gather(std::span<const double> mine) override;
    Ticket collect(void* elements, const comm::Shards& shards, std::size_t size) override;
    void send(int to, std::span<const std::byte> data) override;
    void receive(int from, std::span<std::byte> data) override;

  private:
    const int rank_, ranks_;
    GhostLink* link_ = nullptr;
    Occupier* occupier_ = nullptr;
    bool noting_ = false;
    std::vector<Gradient> noted_;
    std::size_t next_ = 0, bucket_ = 0;  // next range and bucket in the step
};

}  // namespace mr::overlap
